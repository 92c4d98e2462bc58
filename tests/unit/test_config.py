"""Settings: where each comes from, in which order, and how a wrong one is named."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from logd import config
from logd.__main__ import listing, sample_file
from logd.config import Config, address, load, settle
from logd.errors import BadRequest


def settled(flags: dict[str, str], environ: dict[str, str], toml: str, tmp_path: Path) -> Config:
    file = tmp_path / "logd.toml"
    file.write_text(toml)
    return load(flags, environ, file)


FLAG, VARIABLE, TOML = {"fsync": "always"}, {"LOGD_FSYNC": "batches"}, 'fsync = "never"'


@pytest.mark.parametrize(
    ("flags", "environ", "toml", "fsync"),
    [
        (FLAG, VARIABLE, TOML, "always"),
        (FLAG, {}, TOML, "always"),
        (FLAG, VARIABLE, "", "always"),
        ({}, VARIABLE, TOML, "batches"),
        ({}, VARIABLE, "", "batches"),
        ({}, {}, TOML, "never"),
        ({}, {}, "", "interval"),
    ],
)
def test_flags_before_variables_before_the_file_before_the_default(
    flags: dict[str, str], environ: dict[str, str], toml: str, fsync: str, tmp_path: Path
) -> None:
    assert settled(flags, environ, toml, tmp_path).fsync == fsync


def test_a_flag_that_was_not_given_hides_nothing(tmp_path: Path) -> None:
    assert load({"fsync": None}, VARIABLE).fsync == "batches"
    assert load({}, {}).data_dir == Path("data")


def test_every_setting_can_come_from_everywhere(tmp_path: Path) -> None:
    """By one name: --max-topics, LOGD_MAX_TOPICS, max-topics."""
    for field in config.fields():
        name = config.flag(field.name)
        variable = "LOGD_" + name.upper().replace("-", "_")
        default = field.default
        value = shlex.join(default) if isinstance(default, tuple) else str(default)
        for where in (
            load({name: value}, {}),
            load({}, {variable: value}),
            settled({}, {}, f"{name} = '{value}'", tmp_path),
        ):
            assert getattr(where, field.name) == field.default


@pytest.mark.parametrize(
    ("name", "value", "attribute", "settled_as"),
    [
        ("partition-bytes", "1048576", "partition_bytes", 1 << 20),
        ("partition-bytes", "64KB", "partition_bytes", 64_000),
        ("partition-bytes", "64kib", "partition_bytes", 1 << 16),
        ("partition-bytes", "256 MiB", "partition_bytes", 256 << 20),
        ("partition-bytes", "2g", "partition_bytes", 2 * 10**9),
        ("fsync-interval", "200ms", "fsync_interval_s", 0.2),
        ("fsync-interval", "0.5", "fsync_interval_s", 0.5),
        ("fsync-interval", "2m", "fsync_interval_s", 120.0),
        ("partition-age", "7d", "partition_age_s", 604_800.0),
        ("partition-age", "0", "partition_age_s", 0.0),
        ("max-topics", "12", "max_topics", 12),
        ("host", "[::1]:0", "host", "[::1]:0"),
        ("data-dir", "/somewhere", "data_dir", Path("/somewhere")),
    ],
)
def test_units(name: str, value: str, attribute: str, settled_as: object) -> None:
    assert getattr(load({name: value}, {}), attribute) == settled_as


def test_toml_values_may_be_numbers(tmp_path: Path) -> None:
    toml = "max-topics = 5\nfsync-interval = 0.25\npartition-bytes = 1000\n"
    settings = settled({}, {}, toml, tmp_path)
    assert (settings.max_topics, settings.fsync_interval_s) == (5, 0.25)
    assert settings.partition_bytes == 1000


WRONG = [
    ("fsync", "sometimes"),
    ("fsync", ""),
    ("fsync-interval", "0"),
    ("fsync-interval", "-1"),
    ("fsync-interval", "1e3"),
    ("fsync-interval", "inf"),
    ("fsync-interval", "nan"),
    ("fsync-batches", "0"),
    ("fsync-batches", "1.5"),
    ("partition-bytes", "0"),
    ("partition-bytes", "-5"),
    ("partition-bytes", "1_000"),
    ("partition-bytes", "5 parsecs"),
    ("partition-bytes", "٣"),
    ("max-topics", "many"),
    ("max-topics", ""),
    ("host", "localhost"),
    ("host", ":1774"),
    ("host", "127.0.0.1:99999"),
    ("host", "::1:1774"),
    ("host", "127.0.0.1:1774:1774"),
    ("allow-anonymous", "perhaps"),
    ("allow-topics", "a b"),
    ("allow-topics", "../x"),
    ("connection-rate", "-1"),
    ("min-free-bytes", "lots"),
]


@pytest.mark.parametrize(("name", "value"), WRONG)
def test_a_wrong_value_is_refused_by_the_name_it_was_given(
    name: str, value: str, tmp_path: Path
) -> None:
    variable = "LOGD_" + name.upper().replace("-", "_")
    for source, flags, environ, toml in (
        (f"--{name}", {name: value}, {}, ""),
        (variable, {}, {variable: value}, ""),
        (f"{name} in {tmp_path}", {}, {}, f'{name} = "{value}"'),
    ):
        with pytest.raises(BadRequest) as caught:
            settled(flags, environ, toml, tmp_path)
        assert caught.value.text.startswith(source)
        assert repr(value) in caught.value.text


def test_a_wrong_value_that_is_overruled_does_no_harm(tmp_path: Path) -> None:
    assert settled(FLAG, {"LOGD_FSYNC": "wrong"}, "", tmp_path).fsync == "always"


@pytest.mark.parametrize(
    ("toml", "named"),
    [
        ("fysnc = 'always'", "fysnc"),
        ("fsync_interval = 1", "fsync_interval"),
        ("[fsync]\nmode = 'always'", "fsync"),
        ("fsync = ['always']", "fsync"),
        ("max-topics = true", "max-topics"),
        ("topics = 5", "topics"),
        ("[topics]\napp = 5", "app in"),
        ("[topics.app]\nhost = '127.0.0.1:1'", "host in"),
        ("tls-key = 5\ntls-cert = 'x'", "tls-key"),
        ("tls-key = 'x'", "tls-key"),
        ("fsync = ", "logd.toml"),
        ("\xff", "logd.toml"),
    ],
)
def test_a_wrong_file_is_refused_by_name(toml: str, named: str, tmp_path: Path) -> None:
    file = tmp_path / "logd.toml"
    file.write_bytes(toml.encode("latin-1"))
    with pytest.raises(BadRequest, match=named):
        load({}, {}, file)


def test_a_missing_file_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadRequest, match=r"nothing\.toml"):
        load({}, {}, tmp_path / "nothing.toml")


def test_settings_that_contradict_each_other_are_refused() -> None:
    with pytest.raises(BadRequest, match="max-unfinished-bytes"):
        load({"max-batch-bytes": "2000", "max-unfinished-bytes": "1999"}, {})
    load({"max-batch-bytes": "2000", "max-unfinished-bytes": "2000"}, {})


def test_config_lists_every_setting() -> None:
    lines = load({"fsync": "always"}, {}).lines().decode().splitlines()
    said = dict(line.split(": ", 1) for line in lines)
    assert list(said) == [config.flag(field.name) for field in config.fields()]
    assert said["fsync"] == "always"


def test_each_value_has_an_origin(tmp_path: Path) -> None:
    file = tmp_path / "logd.toml"
    file.write_text("max-topics = 5\nmax-cursors = 6\n[topics.app]\nmax-age = '7d'\n")
    settled = settle({"fsync": "always"}, {"LOGD_MAX_CURSORS": "7"}, file)
    assert settled.origins["fsync"] == "--fsync"
    assert settled.origins["max-cursors"] == "LOGD_MAX_CURSORS"
    assert settled.origins["max-topics"] == str(file)
    assert settled.origins["data-dir"] == "default"
    lines = listing(settled).splitlines()
    assert [line.split(" = ")[0] for line in lines if " = " in line][: len(settled.origins)] == [
        *settled.origins
    ]
    (cursors,) = (line for line in lines if line.startswith("max-cursors"))
    assert cursors.split() == ["max-cursors", "=", "7", "#", "LOGD_MAX_CURSORS"]
    assert lines[-2:] == ['[topics."app"]', 'max-age = "7d"']


def test_what_is_listed_can_be_read_again(tmp_path: Path) -> None:
    given = {
        "fsync-interval": "90s", "max-bytes": "3GiB", "max-age": "36h", "allow-anonymous": "on",
        "delete-hook": """cp -t '/a "b"' \\\\x""", "allow-topics": "a-*,b?",
        "http-names": "é.example", "partition-bytes": "1001", "idle-timeout": "1500ms",
        "access-file": 'C:\\q"',
    }  # fmt: skip
    first = settle(given, {}).config
    file = tmp_path / "logd.toml"
    file.write_text(listing(settle(given, {})))
    assert load({}, {}, file) == first


def test_the_sample_has_every_setting_and_its_default(tmp_path: Path) -> None:
    """The file in contrib/ is the one that `logd config --sample` prints now."""
    text = (Path(__file__).parents[2] / "contrib" / "logd.toml").read_text()
    assert text == sample_file(), "run: logd config --sample > contrib/logd.toml"
    file = tmp_path / "logd.toml"
    file.write_text(re.sub(r"(?m)^# ([a-z-]+ = )", r"\1", text).partition('# [topics."')[0])
    settled = settle({}, {}, file)
    assert set(settled.origins.values()) == {str(file)}
    assert settled.config == Config()
    file.write_text(text)
    assert set(settle({}, {}, file).origins.values()) == {"default"}
    section = text[text.index('# [topics."') :]
    file.write_text(re.sub(r"(?m)^# ", "", section))
    assert load({}, {}, file).for_topic("audit-1").fsync == "always"


def test_what_cannot_change_stays() -> None:
    running, wanted = Config(), load({"host": "127.0.0.1:1", "max-topics": "5"}, {})
    taken = wanted.keeping_fixed(running)
    assert taken.differences(running) == ["max-topics"]
    assert wanted.differences(taken) == ["host"]


@pytest.mark.parametrize(
    ("value", "parts"),
    [
        ("127.0.0.1:1774", ("127.0.0.1", 1774)),
        ("localhost:0", ("localhost", 0)),
        ("[::1]:1774", ("::1", 1774)),
        ("example.com:65535", ("example.com", 65535)),
    ],
)
def test_addresses(value: str, parts: tuple[str, int]) -> None:
    assert address(value) == parts
