"""Runs the Dockerfile's steps in bare Debian roots, as `docker build` would, where no engine is at hand: `make image-check`.

    debootstrap ─▶ base (what stands for python:3.11-slim) ─▶ a copy of it for each FROM ─▶ COPY, ENV, RUN, … in it, by chroot

Needs root, debootstrap, and Debian's mirror. Only what the Dockerfile uses is understood; anything else ends the check. At the
end the entry point of each image is asked for its version, or its help, as the image's user.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
BASE: Final = "python:3.11-slim"
_DEBIAN: Final = "bookworm"
"""Debian's release with the same Python."""
_PACKAGES: Final = "python3,python3-pip,python3-venv,python-is-python3,ca-certificates"
_SETTINGS: Final = ("/etc/resolv.conf", "/etc/pip.conf", "/etc/ssl/certs/ca-certificates.crt", "/root/.cargo/config.toml")
"""What this machine's clients of registries need, where it is there: a root needs it, too."""
_ASKED: Final = {"daemon": ["--version"], "spark": ["current", "--help"]}
"""Arguments by stage with which an image says that it works."""
_PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"


@dataclass(frozen=True)
class Step:
    """An instruction, and its words as one text."""

    name: str
    text: str


@dataclass
class Stage:
    """A stage: the root it begins with, and its steps. `state` is what its steps have set."""

    name: str
    base: str
    steps: list[Step] = field(default_factory=list)


@dataclass(frozen=True)
class State:
    """What later steps, and the entry point, get from earlier ones."""

    directory: str = "/"
    user: str = "root"
    environment: tuple[tuple[str, str], ...] = ()
    entry_point: tuple[str, ...] = ()


def stages(text: str) -> Iterator[Stage]:
    """Yield a Dockerfile's stages. Raises ValueError for a line that isn't understood."""
    joined = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE))
    stage: Stage | None = None
    for line in filter(None, map(str.strip, joined.splitlines())):
        name, _, rest = line.partition(" ")
        if name == "FROM":
            if stage is not None:
                yield stage
            found = re.fullmatch(r"(\S+) AS (\S+)", rest.strip())
            if found is None:
                raise ValueError(f"a stage has a name here: {line}")
            stage = Stage(found[2], found[1])
        elif stage is None or name not in ("WORKDIR", "COPY", "RUN", "ENV", "USER", "VOLUME", "EXPOSE", "ENTRYPOINT", "CMD"):
            raise ValueError(f"this line isn't understood: {line}")
        else:
            stage.steps.append(Step(name, rest.strip()))
    if stage is not None:
        yield stage


class Builder:
    """Builder of all stages under a directory."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._states: dict[str, State] = {}

    def base(self) -> None:
        """Make the bare root, unless it is there."""
        root = self._directory / "base"
        if not (root / "usr/bin/pip").exists():
            shutil.rmtree(root, ignore_errors=True)
            _run(["debootstrap", "--variant=minbase", f"--include={_PACKAGES}", _DEBIAN, str(root)])
            # The image of Python has its own one, which pip may install into.
            for marker in root.glob("usr/lib/python3*/EXTERNALLY-MANAGED"):
                marker.unlink()
            for sources in Path("/etc/apt/sources.list.d").glob("debian*"):
                shutil.copy(sources, root / "etc/apt/sources.list.d")
        for name in _SETTINGS:
            self._copy_setting(Path(name), root)

    @staticmethod
    def _copy_setting(source: Path, root: Path) -> None:
        target = root / source.relative_to("/")
        if source.exists():
            target.parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(source, target)

    def build(self, stage: Stage) -> State:
        """Build a stage; return its state. Raises subprocess.CalledProcessError if one of its steps fails."""
        root = self._directory / stage.name
        if root.exists():
            assert not any(os.path.ismount(root / mounted) for mounted in ("proc", "dev")), "an earlier check left its mounts"
            shutil.rmtree(root)
        _run(["cp", "-a", str(self._directory / ("base" if stage.base == BASE else stage.base)), str(root)])
        state = self._states.get(stage.base, State())
        for step in stage.steps:
            print(f"{stage.name}: {step.name} {step.text[:100]}", flush=True)
            state = self._step(root, step, state)
        self._states[stage.name] = state
        return state

    def _step(self, root: Path, step: Step, state: State) -> State:
        match step.name:
            case "WORKDIR":
                _inside(root, step.text).mkdir(parents=True, exist_ok=True)
                return replace(state, directory=step.text)
            case "USER":
                return replace(state, user=step.text)
            case "ENV":
                name, _, value = step.text.partition("=")
                return replace(state, environment=(*state.environment, (name, value)))
            case "ENTRYPOINT":
                return replace(state, entry_point=tuple(json.loads(step.text)))
            case "COPY":
                self._copy(root, step.text, state)
            case "RUN":
                self.run(root, ["sh", "-c", step.text], state)
        return state

    def _copy(self, root: Path, text: str, state: State) -> None:
        words = shlex.split(text)
        source, place = ROOT, words
        if words[0].startswith("--from="):
            source, place = self._directory / words[0].removeprefix("--from="), words[1:]
        *names, target = place
        into = _inside(root, target if target.startswith("/") else f"{state.directory}/{target}")
        into.mkdir(parents=True, exist_ok=True)
        if source is ROOT:
            # What Docker would send: what is tracked, as .dockerignore leaves the rest out.
            listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, check=True, capture_output=True).stdout
            subprocess.run(
                ["cp", "-a", "--parents", "-t", str(into), *filter(None, listed.decode().split("\0"))], cwd=ROOT, check=True
            )
            return
        for name in names:
            found = _inside(source, name)
            _run(["cp", "-a", *map(str, sorted(found.iterdir()) if name.endswith("/") else [found]), str(into)])

    def run(self, root: Path, command: Sequence[str], state: State) -> None:
        """Run a command in a root, as its user. Raises subprocess.CalledProcessError."""
        home = "/root" if state.user == "root" else f"/home/{state.user}"
        kept = {name: value for name, value in os.environ.items() if re.match(r"PIP_|SSL_CERT|REQUESTS_CA|.*_proxy$", name)}
        kept.pop("PIP_FIND_LINKS", None)
        environment = {**kept, "PATH": _PATH, "HOME": home, "DEBIAN_FRONTEND": "noninteractive", **dict(state.environment)}
        _run(["mount", "-t", "proc", "proc", str(root / "proc")])
        _run(["mount", "--bind", "/dev", str(root / "dev")])
        try:
            arguments = [f"--userspec={state.user}", str(root), "env", f"--chdir={state.directory}", *command]
            subprocess.run(["chroot", *arguments], env=environment, check=True)
        finally:
            for mounted in ("dev", "proc"):
                _run(["umount", "--lazy", str(root / mounted)])


def _inside(root: Path, path: str) -> Path:
    return root / path.lstrip("/")


def _run(command: Sequence[str]) -> None:
    subprocess.run(command, check=True)


def main() -> int:
    """Build the wanted stages and those before them, and ask their entry points; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, default=ROOT / "build" / "images", help="where the roots are (some GB)")
    parser.add_argument("targets", nargs="*", default=sorted(_ASKED), help="stages (default: %(default)s)")
    options = parser.parse_args()
    if os.geteuid() or shutil.which("debootstrap") is None:
        print("image-check needs root and debootstrap (apt-get install debootstrap).", file=sys.stderr)
        return 1
    options.directory.mkdir(parents=True, exist_ok=True)
    builder = Builder(options.directory)
    builder.base()
    wanted = set(options.targets)
    found = list(stages((ROOT / "Dockerfile").read_text()))
    for stage in reversed(found):
        if stage.name in wanted:
            wanted |= {stage.base, *(source for step in stage.steps for source in re.findall(r"--from=(\S+)", step.text))}
    for stage in found:
        if stage.name in wanted:
            state = builder.build(stage)
            if stage.name in _ASKED:
                builder.run(options.directory / stage.name, [*state.entry_point, *_ASKED[stage.name]], state)
    print(f"built, and their entry points answer: {', '.join(options.targets)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
