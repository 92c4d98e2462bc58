"""From a clean Debian root: installed by the steps of the documents, and run by the unit's command.

The Dockerfile's own steps are run in such a root too, since there is no container engine here.
"""

from __future__ import annotations

import re
import shlex
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.integration.operations.machine import STEPS_S, Machine, machine
from tests.integration.operations.service import UNIT, Service, serving
from tests.support.daemon import ROOT, wait_until

SOURCES = "/usr/local/src/logd"
# What is fetched and installed counts to the first test: it has the time that its steps have.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(STEPS_S)]


def steps(section: str) -> str:
    """The first block of commands in a section of docs/operations.md."""
    text = (ROOT / "docs" / "operations.md").read_text()
    match = re.search(rf"^## {section}\n.*?^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    assert match, section
    return match[1]


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Machine]:
    with machine(tmp_path_factory.mktemp("machine")) as made:
        made.put_sources(SOURCES)
        made.run(steps("Installation"), directory=SOURCES)
        yield made


def configure(made: Machine, text: str) -> None:
    made.write("/etc/logd/logd.toml", text)


def test_the_unit_s_own_command_takes_a_push_and_survives_a_restart(installed: Machine) -> None:
    with serving(installed) as service:
        assert service.cli("write", "app", "hello") == "app 0..0 (1 message)\n"
        assert service.stop() == 0
    with serving(installed) as service:
        assert service.cli("read", "app") == "hello\n"
        assert service.cli("write", "app", "again") == "app 1..1 (1 message)\n"
        assert "not clean" not in "".join(service.log)
        assert service.stop() == 0


def test_systemd_finds_nothing_to_say_about_the_installed_units(installed: Machine) -> None:
    """Where ExecStart is, which is not here: so with the machine's root."""
    if subprocess.run(["which", "systemd-analyze"], capture_output=True, check=False).returncode:
        pytest.skip("there is no systemd-analyze here; `make operations-packages` does it")
    names = [f"/etc/systemd/system/{name}" for name in ("logd.service", "logd.socket")]
    assert installed.run(f"cat {names[0]}") == UNIT.read_text()
    installed.run("test -x /opt/logd/bin/logd")
    root = shlex.quote(str(installed.root))
    bind = f"mount -t tmpfs tmpfs /opt && mkdir /opt/logd && mount --bind {root}/opt/logd /opt/logd"
    verify = f"systemd-analyze verify {' '.join(f'{root}{name}' for name in names)}"
    done = subprocess.run(
        [*installed.inside(), "unshare", "--mount", "sh", "-c", f"{bind} && {verify}"],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout + done.stderr) == (0, "")


HOOKED = """
partition-bytes = "4KB"
max-partitions = 2
delete-hook = ["/usr/bin/cp", "-t", "/var/lib/logd-archive"]
"""


def fill(service: Service) -> None:
    lines = "".join(f"{n} {'x' * 1000}\n" for n in range(40))
    for _ in range(3):
        service.cli("write", "hooked", stdin=lines)


def test_a_delete_hook_works_inside_the_unit_s_limits(installed: Machine) -> None:
    """With the drop-in that the unit's comment shows; the same file arrives there."""
    installed.run("install -d -o logd -g logd -m 0700 /var/lib/logd-archive")
    configure(installed, HOOKED)
    try:
        with serving(installed, confined=True, writable=["/var/lib/logd-archive"]) as service:
            assert_confined(service)
            fill(service)
            until_hooks_are_done(service, "hooked")
            archived = installed.run("ls /var/lib/logd-archive").split()
            assert archived
            assert service.stop() == 0
    finally:
        configure(installed, "")
    kept = installed.run("ls /var/lib/logd/topics/hooked/*.log").split()
    assert not set(archived) & {Path(path).name for path in kept}
    assert archived[0] == "00000000000000000000.log"
    assert "delete hook" not in "".join(service.log)


def assert_confined(service: Service) -> None:
    assert service.process is not None
    status = Path(f"/proc/{service.process.pid}/status").read_text()
    values = dict(line.split(":\t", 1) for line in status.splitlines() if ":\t" in line)
    assert (values["Seccomp"], values["NoNewPrivs"]) == ("2", "1")
    assert int(values["CapBnd"], 16) == int(values["CapEff"], 16) == 0
    assert values["Uid"].split()[0] != "0"


def until_hooks_are_done(service: Service, topic: str) -> None:
    wait_until(lambda: "\npartitions: 2\n" in service.cli("stats", topic), timeout_s=STEPS_S)


def test_without_the_drop_in_a_hook_cannot_write_elsewhere(installed: Machine) -> None:
    """So the limits of the test are there; and the partition is kept."""
    installed.run("install -d -o logd -g logd -m 0700 /var/lib/logd-archive")
    configure(installed, HOOKED.replace("hooked", "kept"))
    try:
        with serving(installed, confined=True) as service:
            fill(service)
            service.wait_for("the partition is kept")
            assert "Read-only file system" in "".join(service.log)
    finally:
        configure(installed, "")


# -- the image ------------------------------------------------------------------------------------


def instructions() -> list[list[tuple[str, str]]]:
    """The Dockerfile's stages, each a list of instructions and what follows them."""
    text = re.sub(r"^#.*\n", "", (ROOT / "Dockerfile").read_text(), flags=re.MULTILINE)
    text = text.replace("\\\n", " ")
    stages: list[list[tuple[str, str]]] = []
    for line in filter(None, map(str.strip, text.splitlines())):
        word, _, rest = line.partition(" ")
        if word == "FROM":
            stages.append([])
        stages[-1].append((word, rest.strip()))
    return stages


def build(made: Machine, stage: list[tuple[str, str]], built: Machine | None) -> dict[str, str]:
    """Do what the instructions of a stage say. Returns those that speak of a running container."""
    directory, said = "/", dict[str, str]()
    for word, rest in stage:
        if word == "FROM":
            assert rest.split()[0] == "debian:bookworm-slim", "what the clean root is"
        elif word == "RUN":
            made.run(rest, directory)
        elif word == "WORKDIR":
            directory = rest
            made.run(f"mkdir -p {rest}")
        elif word == "COPY" and rest.startswith("--from=build "):
            assert built is not None
            _, from_, to = rest.split()
            copy_between(built, from_, made, to)
        elif word == "COPY":
            *names, to = rest.split()
            made.run(f"cp -r {' '.join(f'{SOURCES}/{name}' for name in names)} {to}", directory)
        else:
            said[word] = f"{said[word]} {rest}" if word in said else rest
    return said


def copy_between(built: Machine, from_: str, made: Machine, to: str) -> None:
    assert from_ == to
    packed = subprocess.run(
        [*built.inside(), "tar", "-C", str(built.root), "-c", from_[1:]],
        capture_output=True, check=True,
    )  # fmt: skip
    subprocess.run(
        [*made.inside(), "tar", "-C", str(made.root), "-x"], input=packed.stdout, check=True
    )


def test_the_steps_of_the_dockerfile(tmp_path: Path) -> None:
    (tmp_path / "build").mkdir()
    (tmp_path / "image").mkdir()
    first, second = instructions()
    with machine(tmp_path / "build") as built, machine(tmp_path / "image") as image:
        built.put_sources(SOURCES)
        build(built, first, None)
        said = build(image, second, built)
        assert said["USER"] == "1774"
        entry = " ".join(shlex.quote(word) for word in eval(said["ENTRYPOINT"]))
        health = " ".join(
            shlex.quote(word) for word in eval(said["HEALTHCHECK"].partition("CMD")[2])
        )
        path = re.search(r'PATH="(\S+):\$PATH"', said["ENV"])
        assert path
        run_image(image, said["USER"], path[1], entry, health)


def run_image(image: Machine, user: str, path: str, entry: str, health: str) -> None:
    """Start it, wait for its health check, push, stop: the second start has what was pushed."""
    as_user = f"setpriv --reuid={user} --regid={user} --clear-groups --no-new-privs"
    life = f"""
        export PATH={path}:$PATH LOGD_ALLOW_ANONYMOUS=yes
        {as_user} {entry} 2>/tmp/said & pid=$!
        until {health} >/dev/null 2>&1; do kill -0 $pid || {{ cat /tmp/said; exit 1; }}; done
        log-cli write app hello
        log-cli read app
        kill $pid; wait $pid
        grep -q stopped /tmp/said
    """
    alone = [*image.inside(), "unshare", "--net", "sh", "-c"]
    for expected in (["app 0..0 (1 message)", "hello"], ["app 1..1 (1 message)", "hello", "hello"]):
        inner = " ".join(map(shlex.quote, [*image.chroot(), "sh", "-euc", life]))
        done = subprocess.run(
            [*alone, f"ip link set lo up; exec {inner}"],
            capture_output=True, text=True, timeout=120, check=False,
        )  # fmt: skip
        assert (done.returncode, done.stdout.splitlines()) == (0, expected), done
