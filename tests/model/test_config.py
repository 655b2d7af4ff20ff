"""The configuration: where a setting comes from, what is refused, and how the refusal reads."""

import dataclasses

import pytest
import yaml
from hypothesis import example, given
from hypothesis import strategies as st

from waterclock.model.config import SECTIONS, SETTINGS, Config, load_config
from waterclock.model.errors import BadConfig
from waterclock.model.sections import DedupConfig, LogConfig
from waterclock.model.settings import settings_of
from waterclock.model.units import DAY_MS, MIB

SEED_FILE = """
cluster:
  name: "async-output-cluster"
  gossip_port: 7946
  http_port: 8080
  bootstrap_nodes:
    - "node1.example.com:7946"
    - "node2.example.com:7946"

matching:
  default_timeout: "30s"
  max_timeout: "300s"

hash_ring:
  virtual_nodes: 200
"""


def load(text: str | None = None, *, environ=None, flags=None) -> Config:
    return load_config(yaml_text=text, environ=environ or {}, flags=flags or {})


def refusal(text: str | None = None, *, environ=None, flags=None) -> tuple[str, str]:
    with pytest.raises(BadConfig) as caught:
        load(text, environ=environ, flags=flags)
    return caught.value.field, caught.value.problem


def outcome(text: str | None, *, environ, flags) -> Config | BadConfig:
    try:
        return load(text, environ=environ, flags=flags)
    except BadConfig as error:
        return error


# Where a setting comes from


def test_nothing_given_means_all_defaults():
    assert load() == load("") == Config()


def test_the_file_of_the_first_design_loads_unchanged():
    config = load(SEED_FILE)

    assert config.cluster.name == "async-output-cluster"
    assert (config.cluster.gossip_port, config.cluster.http_port) == (7946, 8080)
    assert config.cluster.bootstrap_nodes == ("node1.example.com:7946", "node2.example.com:7946")
    assert config.matching.default_timeout_ms == 30_000
    assert config.matching.max_timeout_ms == 300_000
    assert config.hash_ring.virtual_nodes == 200


@pytest.mark.parametrize("in_file", [True, False])
@pytest.mark.parametrize("in_environment", [True, False])
@pytest.mark.parametrize("in_flags", [True, False])
def test_flags_win_over_the_environment_and_that_over_the_file(in_file, in_environment, in_flags):
    config = load(
        "log: {segment_bytes: 100MiB}" if in_file else None,
        environ={"WATERCLOCK_LOG__SEGMENT_BYTES": "200MiB"} if in_environment else {},
        flags={"log.segment_bytes": "300MiB"} if in_flags else {},
    )

    given = [300] * in_flags + [200] * in_environment + [100] * in_file + [512]
    assert config.log.segment_bytes == given[0] * MIB


def test_one_place_does_not_hide_the_other_settings_of_another():
    config = load(
        "log: {fsync: always, segment_bytes: 64MB}",
        environ={"WATERCLOCK_LOG__FSYNC": "interval"},
        flags={"log.fsync_interval": 250},
    )

    expected = LogConfig(segment_bytes=64 * MIB, fsync="interval", fsync_interval_ms=250)
    assert config == Config(log=expected)


@pytest.mark.parametrize("written", ["256MiB", "256MB", "268435456", "268_435_456", 268_435_456])
def test_an_amount_may_have_a_unit_or_be_a_number(written):
    environ = {"WATERCLOCK_LOG__SEGMENT_BYTES": str(written)}

    assert load(environ=environ).log.segment_bytes == 256 * MIB
    assert load(flags={"log.segment_bytes": written}).log.segment_bytes == 256 * MIB
    assert load(f"log: {{segment_bytes: {written}}}").log.segment_bytes == 256 * MIB


@pytest.mark.parametrize("written", ["a:1,b:2", " a:1 , b:2 "])
def test_a_list_in_the_environment_is_parted_by_commas(written):
    config = load(environ={"WATERCLOCK_CLUSTER__BOOTSTRAP_NODES": written})

    assert config.cluster.bootstrap_nodes == ("a:1", "b:2")


def test_members_of_etcd_are_addresses_or_urls():
    config = load(environ={"WATERCLOCK_CLUSTER__ETCD": "a:2379,http://b:2379/"})

    assert config.cluster.etcd == ("a:2379", "http://b:2379")
    assert config.cluster.is_clustered
    assert config.cluster.is_replicated


@pytest.mark.parametrize(
    ("settings", "field"),
    [
        ("etcd: [ftp://a:2379]", "cluster.etcd"),
        ("etcd: [a]", "cluster.etcd"),
        ("etcd: [https://a:2379]", "cluster.etcd_ca"),
        ("etcd: [https://a:2379, b:2379], etcd_ca: ca.pem", "cluster.etcd"),
        ("etcd_certificate: node.pem", "cluster.etcd_key"),
        ("etcd_user: waterclock", "cluster.etcd_password_file"),
    ],
)
def test_settings_of_etcd_that_do_not_go_together_are_refused(settings, field):
    assert refusal(f"cluster: {{{settings}}}")[0] == field


def test_an_empty_list_in_the_environment_empties_the_one_in_the_file():
    config = load(SEED_FILE, environ={"WATERCLOCK_CLUSTER__BOOTSTRAP_NODES": ""})

    assert config.cluster.bootstrap_nodes == ()


@pytest.mark.parametrize("nothing", ["", "~", "null", "none"])
def test_a_setting_that_may_be_none_can_be_set_back_to_it(nothing):
    assert load(f"retention: {{age: {nothing}}}").retention.age_ms is None
    assert load("retention: {age: 30d}").retention.age_ms == 30 * DAY_MS


def test_a_section_with_all_lines_commented_out_is_empty():
    assert load("log:\n  # fsync: always\n") == Config()


@pytest.mark.parametrize(
    "name", ["PATH", "WATERCLOCK_SERVICE_HOST", "WATERCLOCK_REWRITE", "OTHER_LOG__FSYNC"]
)
def test_names_in_the_environment_that_are_not_settings_are_left_alone(name):
    assert load(environ={name: "x"}) == Config()


@pytest.mark.parametrize("path", SETTINGS)
def test_every_default_written_out_is_read_as_itself(path):
    setting = SETTINGS[path]
    written = setting.kind.show(setting.default)
    name = "WATERCLOCK_" + path.upper().replace(".", "__")

    assert load(environ={name: written}) == load(flags={path: setting.default}) == Config()


# What is refused


@pytest.mark.parametrize(
    ("text", "field", "problem"),
    [
        (
            "log: {segment_bytes: 4KiB}",
            "log.segment_bytes",
            "expected a size from 64MiB to 1GiB, got '4KiB' in the file",
        ),
        (
            "dedup: {window: 31d}",
            "dedup.window",
            "expected a time from 1d to 30d, got '31d' in the file",
        ),
        (
            "log: {fsync: sometimes}",
            "log.fsync",
            "expected group or always or interval, got 'sometimes' in the file",
        ),
        (
            "log: {fsync: }",
            "log.fsync",
            "expected group or always or interval, got None in the file",
        ),
        (
            "dedup: {enabled: 1}",
            "dedup.enabled",
            "expected true or false, got '1' in the file",
        ),
        (
            "cluster: {bootstrap_nodes: [node1]}",
            "cluster.bootstrap_nodes",
            "expected a list of host:port, srv:name, or provider=name …, got ['node1'] in the file",
        ),
        (
            "node: {name: ''}",
            "node.name",
            "expected text of 1 to 255 printable characters, or none, got '' in the file",
        ),
        (
            "log: {segment_byte: 1}",
            "log.segment_byte",
            "is not a setting, in the file; did you mean log.segment_bytes?",
        ),
        (
            "matching: {default_timeout_ms: 1}",
            "matching.default_timeout_ms",
            "is not a setting, in the file; did you mean matching.default_timeout?",
        ),
        ("lgo: {fsync: always}", "lgo", "is not a setting, in the file; did you mean log?"),
        ("xyzzy: 1", "xyzzy", "is not a setting, in the file"),
        ("log: always", "log", "expected names and values, got 'always'"),
        ("[log]", "file", "expected names and values, got ['log']"),
        ("just text", "file", "expected names and values, got 'just text'"),
    ],
)
def test_a_refusal_names_the_setting_the_value_and_what_is_allowed(text, field, problem):
    assert refusal(text) == (field, problem)


def test_a_mistake_in_the_environment_names_the_setting_and_the_place():
    assert refusal(environ={"WATERCLOCK_LOG__FSYNCH": "always"}) == (
        "log.fsynch",
        "is not a setting, in the environment; did you mean log.fsync?",
    )
    assert refusal(environ={"WATERCLOCK_CLUSTER__HTTP_PORT": "65536"}) == (
        "cluster.http_port",
        "expected a number from 0 to 65535, got '65536' in the environment",
    )


@pytest.mark.parametrize("raw", [True, 1.5, None, [], {"a": 1}, "true"])
def test_a_flag_of_the_wrong_type_is_refused(raw):
    field, problem = refusal(flags={"cluster.http_port": raw})

    assert field == "cluster.http_port"
    assert problem.startswith("expected a number from 0 to 65535, got ")
    assert problem.endswith(" in the flags")


def test_a_number_too_long_to_print_is_refused_like_any_other():
    problem = "expected a number from 0 to 65535, got a huge int in the flags"

    assert refusal(flags={"cluster.http_port": 10**5_000}) == ("cluster.http_port", problem)


def test_a_mistake_is_refused_even_where_another_place_wins():
    assert refusal("log: {fsync: never}", flags={"log.fsync": "always"})[0] == "log.fsync"


@pytest.mark.parametrize(
    ("flags", "field", "problem"),
    [
        (
            {"matching.default_timeout": "400s"},
            "matching.default_timeout",
            "is longer than matching.max_timeout",
        ),
        (
            {"limits.message_bytes_max": "65MiB"},
            "limits.message_bytes_max",
            "is more than limits.batch_bytes_max",
        ),
        ({"cluster.grpc_port": 8080}, "cluster.grpc_port", "is 8080, as is cluster.http_port"),
        (
            {"security.issuer": "https://id.example", "security.jwks": "/etc/jwks.json"},
            "security.audience",
            "is needed to take tokens of another issuer",
        ),
    ],
)
def test_settings_that_make_no_sense_together_are_refused(flags, field, problem):
    assert refusal(flags=flags) == (field, problem)


def test_several_ports_may_be_any_free_one():
    flags = {"cluster.gossip_port": 0, "cluster.http_port": 0, "cluster.grpc_port": 0}

    assert load(flags=flags).cluster.grpc_port == 0


def test_tests_may_use_small_segments_and_windows_that_operators_may_not():
    assert LogConfig(segment_bytes=4_096).segment_bytes == 4_096
    assert DedupConfig(window_ms=1_000).window_ms == 1_000
    with pytest.raises(BadConfig, match=r"log\.segment_bytes: expected a size from 4KiB to 1GiB"):
        LogConfig(segment_bytes=4_095)


def test_a_section_takes_values_not_texts():
    with pytest.raises(AssertionError, match="segment_bytes takes 4096, not '4KiB'"):
        LogConfig(segment_bytes="4KiB")  # type: ignore[arg-type]


def test_a_configuration_does_not_change():
    with pytest.raises(dataclasses.FrozenInstanceError):
        Config().log.fsync = "always"  # type: ignore[misc]


def test_a_section_goes_by_one_name_everywhere():
    assert {name: section.section for name, section in SECTIONS.items()} == {
        name: name for name in SECTIONS
    }


# Anything at all

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner) | st.tuples(inner),
    max_leaves=8,
)
names = st.sampled_from([*sorted(SETTINGS), *SECTIONS, ""]) | st.text()
words = st.sampled_from(["30s", "512MiB", "none", "always", "a:1", "7d", "1"]) | st.text()
lines = st.builds(
    "{}: {}".format, st.sampled_from([*SECTIONS, "  fsync", "  window", "  age"]), words
)
files = st.dictionaries(
    st.sampled_from(sorted(SECTIONS)),
    st.dictionaries(st.sampled_from(["fsync", "window", "age", "name"]), words | anything),
).map(yaml.dump)


@given(
    st.none() | st.text() | st.lists(lines).map("\n".join) | anything.map(yaml.dump) | files,
    st.dictionaries(names.map(lambda name: "WATERCLOCK_" + name.upper().replace(".", "__")), words),
    st.dictionaries(names, anything | words),
)
@example(None, {}, {"": "30s"})
@example(None, {"WATERCLOCK_\ud800__\n": ""}, {})
def test_whatever_is_given_loads_or_is_refused_with_bad_config(text, environ, flags):
    match outcome(text, environ=environ, flags=flags):
        case BadConfig() as error:
            assert 0 < len(error.field) <= 1_000
            assert len(error.problem) <= 1_000
        case config:
            assert isinstance(config, Config)


@given(st.sampled_from(sorted(SETTINGS)), anything | words)
def test_a_value_that_was_accepted_is_accepted_again_and_unchanged(path, raw):
    setting = SETTINGS[path]
    try:
        value = setting.read(raw)
    except BadConfig:
        return

    assert setting.read(value) == value
    assert setting.read(setting.kind.show(value)) == value


def test_every_default_is_within_what_an_operator_may_ask_for():
    for section in SECTIONS.values():
        for setting in settings_of(section):
            assert SETTINGS[setting.path].read(setting.default) == setting.default


def test_settings_of_other_programs_in_the_same_environment_are_theirs():
    environ = {"WATERCLOCK_DISPATCH__SOURCE": "readings", "WATERCLOCK_WORKER__CREDIT": "5"}
    assert load(environ=environ) == load(environ={})


def test_origins_are_kept_as_browsers_write_them():
    config = load(
        flags={"server.cors_origins": "https://App.example.com:443, http://localhost:3000,*"}
    )
    listed = load("server: {cors_origins: ['http://[::1]:80', 'tauri://localhost']}")

    assert load().server.cors_origins == ()
    assert config.server.cors_origins == ("https://app.example.com", "http://localhost:3000", "*")
    assert listed.server.cors_origins == ("http://[::1]", "tauri://localhost")


@pytest.mark.parametrize(
    "text", ["null", "app.example.com", "https://", "https://a/", "https://a/b", "https://a b"]
)
def test_what_is_no_origin_is_refused(text):
    assert refusal(flags={"server.cors_origins": text}) == (
        "server.cors_origins",
        "expected a list of origins such as https://app.example.com, or *, "
        f"got {text!r} in the flags",
    )


def test_host_names_are_one_name_a_domain_or_all():
    config = load("server: {hosts: [Gateway, node-1.example.com, .svc.cluster.local, '*']}")

    names = ("gateway", "node-1.example.com", ".svc.cluster.local", "*")
    assert config.server.hosts == names


@pytest.mark.parametrize("text", ["a:80", "http://a", "a b", "*.a.example", "a..b", "."])
def test_what_is_no_host_name_is_refused(text):
    path, problem = refusal(flags={"server.hosts": text})

    assert path == "server.hosts"
    assert "expected a list of host names such as node1.example.com, or *" in problem


def test_seeds_are_addresses_services_in_dns_or_tags_in_a_cloud():
    seeds = ("a:1", "srv:_gossip._udp.example.com", "provider=gce tag_value=orders")
    config = load(flags={"cluster.bootstrap_nodes": ",".join(seeds)})

    assert config.cluster.bootstrap_nodes == seeds
    assert config.cluster.is_clustered
    with pytest.raises(BadConfig, match=r"expected a list of host:port, srv:name"):
        load(flags={"cluster.bootstrap_nodes": "srv:"})


def test_the_port_for_other_nodes_is_one_of_its_own():
    with pytest.raises(BadConfig, match=r"cluster\.http_port: is 7947, as is cluster\.peer_port"):
        load(flags={"cluster.http_port": "7947"})
