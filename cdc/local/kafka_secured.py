"""A broker with passwords and an authorizer: who isn't granted something may not do it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cdc.local.kafka import Kafka
from cdc.local.ports import free_port

_LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


class SecuredKafka(Kafka):
    """`Kafka` with a second listener where clients log in by SASL/PLAIN, and have the rights that ACLs grant them.

    At the first listener, `bootstrap_servers`, nobody logs in and everybody may do everything: for tests that look at the topics
    and change ACLs.
    """

    def __init__(
        self,
        directory: Path,
        users: Mapping[str, str],
        properties: Mapping[str, str] | None = None,
        *,
        heap: str = "512m",
        name: str = "Kafka",
    ) -> None:
        """`users` are names with their passwords; none has any right at first."""
        super().__init__(directory, properties, heap=heap, name=name)
        self._users = dict(users)
        self._sasl_port = free_port()

    @property
    def secured_servers(self) -> str:
        """`host:port` where clients log in."""
        return f"127.0.0.1:{self._sasl_port}"

    def _node_properties(self) -> dict[str, str]:
        properties = super()._node_properties()
        users = " ".join(f'user_{user}="{password}"' for user, password in self._users.items())
        for key in ("listeners", "advertised.listeners"):
            properties[key] += f",SECURED://{self.secured_servers}"
        properties["listener.security.protocol.map"] += ",SECURED:SASL_PLAINTEXT"
        return properties | {
            "inter.broker.listener.name": "PLAINTEXT",
            "listener.name.secured.sasl.enabled.mechanisms": "PLAIN",
            "listener.name.secured.plain.sasl.jaas.config": f"{_LOGIN_MODULE} required {users};",
            "authorizer.class.name": "org.apache.kafka.metadata.authorizer.StandardAuthorizer",
            "super.users": "User:ANONYMOUS",
            # Whoever asks for a topic that isn't there must not get it by asking.
            "auto.create.topics.enable": "false",
        }

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self._sasl_port = free_port()
