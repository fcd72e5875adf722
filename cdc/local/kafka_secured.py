"""A broker with passwords and an authorizer: clients may do only what they are granted."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from cdc.local.kafka import Kafka
from cdc.local.ports import free_port

_LOGIN_MODULE = "org.apache.kafka.common.security.plain.PlainLoginModule"


class SecuredKafka(Kafka):
    """`Kafka` with a second listener where clients log in by SASL/PLAIN, and have the rights that ACLs grant them.

    At the first listener, `bootstrap_servers`, clients don't log in and may do everything: for tests that examine the topics and
    change ACLs.
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
        """`users` are names with their passwords; at first, none has any right."""
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
            # A request for a missing topic must not create it.
            "auto.create.topics.enable": "false",
        }

    def _choose_ports(self) -> None:
        super()._choose_ports()
        self._sasl_port = free_port()
