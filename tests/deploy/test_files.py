"""The files that deploy the server: read, linted and, where the program is there, verified."""

from __future__ import annotations

import re
import shutil
import subprocess
import sysconfig
from pathlib import Path
from typing import Any

import pytest
import yaml

from explorer.hosting import FIXED_IN_PUBLIC
from explorer.settings import PREFIX, Settings
from tests.deploy.dockerfile import ROOT, Step, environment, final, read

DEPLOY = ROOT / "deploy"


def program(name: str) -> str:
    """A program of the system or of this environment; the test is skipped without it."""
    found = shutil.which(name) or shutil.which(name, path=sysconfig.get_path("scripts"))
    if found is None:
        pytest.skip(f"{name} is not installed")
    return found


def only(steps: list[Step], name: str) -> Step:
    (found,) = [step for step in steps if step.name == name]
    return found


# -- the image


def test_the_base_is_pinned_and_the_same_for_both_stages() -> None:
    steps = read()
    base = only(steps, "ARG").text
    name, _, value = base.partition("=")
    assert re.fullmatch(r"python(:3\.\d+\.\d+-[a-z-]+)?(@sha256:[0-9a-f]{64})?", value)
    assert value != "python"
    stages = [step.text.split()[0] for step in steps if step.name == "FROM"]
    assert stages == [f"${{{name}}}"] * 2


def test_the_image_runs_as_a_numbered_user_who_owns_only_its_data() -> None:
    steps = final(read())
    names = [step.name for step in steps]
    assert only(steps, "USER").text == "1000:1000"
    assert names.index("USER") < names.index("CMD")
    after = steps[names.index("USER") :]
    assert not [step for step in after if step.name in ("RUN", "COPY", "ADD")]
    (made,) = [step for step in steps if step.name == "RUN"]
    assert made.text.count("--owner") == 1
    assert "--owner=1000 --group=1000 --mode=0700 /data" in made.text
    copied = [step for step in steps if step.name == "COPY"]
    assert all("--chown" not in step.text for step in copied)


def test_only_the_volume_is_written() -> None:
    steps = final(read())
    set_ = environment(steps)
    assert only(steps, "VOLUME").words == ["/data"]
    assert set_[f"{PREFIX}STORE"].startswith("/data/")
    assert set_["HOME"] == "/data"
    assert set_["PYTHONDONTWRITEBYTECODE"] == "1"


def test_the_image_says_how_it_ends_and_whether_it_lives() -> None:
    steps = final(read())
    assert only(steps, "STOPSIGNAL").text == "SIGTERM"
    health = only(steps, "HEALTHCHECK").text
    assert "/healthz" in health
    assert environment(steps)[f"{PREFIX}PORT"] in health
    assert only(steps, "EXPOSE").text == environment(steps)[f"{PREFIX}PORT"]


def test_the_image_holds_no_secret_and_fetches_nothing_but_packages() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert not re.search(r"(?i)(token|secret|password|api_key)\s*=", text)
    assert not re.search(r"\b(curl|wget|apt-get)\b", text)
    assert "ADD" not in {step.name for step in read()}


def test_one_worker_is_explained() -> None:
    text = (ROOT / "Dockerfile").read_text()
    assert "One process and one worker: DuckDB has one writer" in text


def test_every_variable_of_the_deployment_is_a_setting() -> None:
    known = {f"{PREFIX}{name.upper()}" for name in Settings.model_fields} | {f"{PREFIX}CONFIG"}
    for path in [ROOT / "Dockerfile", *(p for p in DEPLOY.rglob("*") if p.is_file())]:
        named = set(re.findall(rf"{PREFIX}[A-Z_]+", path.read_text()))
        assert named <= known, (path, named - known)


def test_what_is_copied_exists_and_is_let_through() -> None:
    let_in = {
        line.removeprefix("!")
        for line in (ROOT / ".dockerignore").read_text().splitlines()
        if line.startswith("!")
    }
    sources: set[str] = set()
    for step in read():
        if step.name == "COPY" and not step.text.startswith("--from"):
            sources |= set(step.words[:-1])
    assert sources == let_in
    assert all((ROOT / source).exists() for source in sources)
    rules = (ROOT / ".dockerignore").read_text().splitlines()
    assert "*" in rules
    assert {"**/*.duckdb", "**/.env"} <= set(rules)


def test_hadolint_has_nothing_to_say() -> None:
    ended = subprocess.run(
        [program("hadolint"), str(ROOT / "Dockerfile")], capture_output=True, text=True
    )
    assert (ended.returncode, ended.stdout) == (0, ""), ended.stdout + ended.stderr


# -- compose


@pytest.fixture(scope="module")
def compose() -> dict[str, Any]:
    found = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    assert isinstance(found, dict)
    return found


def test_compose_is_one_locked_down_service(compose: dict[str, Any]) -> None:
    (service,) = compose["services"].values()
    assert service["read_only"] is True
    assert service["cap_drop"] == ["ALL"]
    assert "cap_add" not in service
    assert "privileged" not in service
    assert service["security_opt"] == ["no-new-privileges:true"]
    assert service["user"] == "1000:1000"
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    (volume,) = service["volumes"]
    assert volume == "data:/data"
    assert "data" in compose["volumes"]
    (temporary,) = service["tmpfs"]
    assert temporary.startswith("/tmp:")
    assert {"noexec", "nosuid", "nodev"} <= set(temporary.split(":")[1].split(","))
    assert "depends_on" not in service


def test_compose_does_not_start_without_a_token(compose: dict[str, Any]) -> None:
    (service,) = compose["services"].values()
    assert ":?" in service["environment"][f"{PREFIX}ADMIN_TOKEN"]


def test_compose_names_no_other_database() -> None:
    assert "postgres" not in (DEPLOY / "compose.yaml").read_text().lower()


def test_compose_by_the_compose_program(tmp_path: Path) -> None:
    docker = program("docker")
    there = subprocess.run([docker, "compose", "version"], capture_output=True)
    if there.returncode:
        pytest.skip("the docker program here has no compose")
    environment = {f"{PREFIX}ADMIN_TOKEN": "t" * 40, "PATH": "/usr/bin:/bin"}
    command = [docker, "compose", "-f", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
    ended = subprocess.run(command, capture_output=True, text=True, env=environment)
    assert ended.returncode == 0, ended.stderr


# -- the Space


def test_the_front_matter_of_the_space() -> None:
    text = (DEPLOY / "space" / "README.md").read_text()
    assert text.startswith("---\n")
    front = yaml.safe_load(text.split("---\n")[1])
    assert front["sdk"] == "docker"
    assert front["app_port"] == int(environment(final(read()))[f"{PREFIX}PORT"])
    assert front["hf_oauth"] is True
    assert front["hf_oauth_scopes"] == ["read-memberships"]
    assert 1 <= front["hf_oauth_expiration_minutes"] <= 43200
    colours = {"red", "yellow", "green", "blue", "indigo", "purple", "pink", "gray"}
    assert {front["colorFrom"], front["colorTo"]} <= colours
    assert len(front["short_description"]) <= 60
    # Nothing that would let a visitor write.
    assert not {"write-repos", "manage-repos", "contribute-repos"} & set(
        front["hf_oauth_scopes"]
    )


def test_the_image_shows_the_public_profile_by_default() -> None:
    assert only(final(read()), "CMD").words == ["demo", "--public"]
    assert FIXED_IN_PUBLIC["read_only"] is True


# -- systemd and reverse proxies


def test_systemd_finds_nothing_wrong(tmp_path: Path) -> None:
    analyze = program("systemd-analyze")
    text = (DEPLOY / "rollout-explorer.service").read_text()
    # It must find a program at the address; any that exists will do.
    unit = tmp_path / "rollout-explorer.service"
    unit.write_text(text.replace("/opt/rollout-explorer/bin/rollout-explorer", "/bin/true"))
    ended = subprocess.run([analyze, "verify", str(unit)], capture_output=True, text=True)
    said = [line for line in ended.stderr.splitlines() if "rollout-explorer" in line]
    assert said == [], ended.stderr
    assert ended.returncode == 0, ended.stderr


def test_systemd_calls_the_unit_well_locked() -> None:
    analyze = program("systemd-analyze")
    unit = DEPLOY / "rollout-explorer.service"
    command = [analyze, "security", "--offline=true", "--threshold=20", str(unit)]
    ended = subprocess.run(command, capture_output=True, text=True)
    if "Unknown" in ended.stderr or "unrecognized" in ended.stderr:
        pytest.skip("this systemd-analyze judges no files")
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr


def certificate(folder: Path) -> tuple[Path, Path]:
    """A certificate of its own for the host of the snippets."""
    key, cert = folder / "privkey.pem", folder / "fullchain.pem"
    command = [program("openssl"), "req", "-x509", "-newkey", "ec", "-nodes", "-days", "1"]
    command += ["-pkeyopt", "ec_paramgen_curve:prime256v1", "-subj", "/CN=explorer.example.org"]
    subprocess.run(
        [*command, "-keyout", str(key), "-out", str(cert)], check=True, capture_output=True
    )
    return cert, key


def nginx_configuration(folder: Path, port: int, secure_port: int, upstream: str) -> Path:
    """The snippet inside a whole configuration that needs no rights."""
    certificate(folder)
    snippet = (DEPLOY / "nginx.conf").read_text()
    snippet = snippet.replace("/etc/ssl/explorer.example.org/", f"{folder}/")
    snippet = snippet.replace("listen 80;", f"listen 127.0.0.1:{port};")
    snippet = snippet.replace("listen 443 ssl;", f"listen 127.0.0.1:{secure_port} ssl;")
    snippet = snippet.replace("server 127.0.0.1:7860;", f"server {upstream};")
    kinds = ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    paths = "\n".join(f"{kind}_temp_path {folder}/{kind};" for kind in kinds)
    whole = folder / "nginx.conf"
    whole.write_text(
        f"pid {folder}/nginx.pid;\nerror_log {folder}/error.log;\nevents {{ }}\n"
        f"http {{\n{paths}\naccess_log {folder}/access.log;\n{snippet}\n}}\n"
    )
    return whole


def test_nginx_reads_the_snippet(tmp_path: Path) -> None:
    nginx = program("nginx")
    whole = nginx_configuration(tmp_path, 18080, 18443, "127.0.0.1:7860")
    ended = subprocess.run(
        [nginx, "-t", "-q", "-c", str(whole)], capture_output=True, text=True
    )
    assert ended.returncode == 0, ended.stderr
    assert "warn" not in ended.stderr


def test_caddy_reads_the_snippet(tmp_path: Path) -> None:
    caddy = program("caddy")
    command = [caddy, "validate", "--adapter", "caddyfile", "--config"]
    ended = subprocess.run(
        [*command, str(DEPLOY / "Caddyfile")],
        capture_output=True,
        text=True,
        env={"HOME": str(tmp_path), "PATH": "/usr/bin:/bin"},
    )
    assert ended.returncode == 0, ended.stderr
    assert "Valid configuration" in ended.stdout + ended.stderr
