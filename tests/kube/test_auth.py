"""Where credentials come from, and what is said when they can't be found or used."""

from __future__ import annotations

import ssl
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml

from sharepod_operator.kube import auth
from sharepod_operator.kube.auth import connect
from sharepod_operator.kube.errors import AuthError


def kubeconfig(path: Path, *, server: str = "https://127.0.0.1:6443", user: dict[str, Any] | None = None) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    config = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "one",
        "contexts": [
            {"name": name, "context": {"cluster": "c", "user": "u", "namespace": f"ns-{name}"}}
            for name in ("one", "two")
        ],
        "clusters": [{"name": "c", "cluster": {"server": server, "insecure-skip-tls-verify": True}}],
        "users": [{"name": "u", "user": user or {"token": path.parent.name}}],
    }
    path.write_text(yaml.safe_dump(config))
    return path


def plugin(folder: Path, output: str) -> dict[str, Any]:
    script = folder / "plugin.sh"
    script.write_text(f"#!/bin/sh\n{output}\n")
    script.chmod(0o755)
    return {
        "exec": {"command": str(script), "apiVersion": "client.authentication.k8s.io/v1", "interactiveMode": "Never"}
    }


def credential(status: str) -> str:
    return f'echo \'{{"apiVersion":"client.authentication.k8s.io/v1","kind":"ExecCredential","status":{{{status}}}}}\''


class TestSources:
    async def test_the_explicit_file_wins_then_the_variable_then_home(self, tmp_path: Path) -> None:
        """The order is that of kubectl."""
        explicit = kubeconfig(tmp_path / "explicit" / "config")
        variable = kubeconfig(tmp_path / "variable" / "config")
        kubeconfig(tmp_path / "home" / ".kube" / "config")
        home = {"HOME": str(tmp_path / "home")}
        both = {**home, "KUBECONFIG": str(variable)}
        found = [
            await connect(kubeconfig=str(explicit), environ=both),
            await connect(environ=both),
            await connect(environ=home),
        ]
        assert ["Bearer explicit", "Bearer variable", "Bearer .kube"] == [await one.authorization() for one in found]

    async def test_a_context_can_be_chosen(self, tmp_path: Path) -> None:
        """The context's namespace comes with it, and the source says which one it was."""
        path = kubeconfig(tmp_path / "x" / "config")
        chosen = await connect(kubeconfig=str(path), context="two")
        assert ("ns-two", f"kubeconfig {path}, context two") == (chosen.namespace, chosen.source)
        assert "ns-one" == (await connect(kubeconfig=str(path))).namespace

    async def test_several_files_are_merged(self, tmp_path: Path) -> None:
        """KUBECONFIG may name several files, of which some may be missing."""
        path = kubeconfig(tmp_path / "x" / "config")
        found = await connect(environ={"KUBECONFIG": f"{tmp_path / 'missing'}:{path}"})
        assert "https://127.0.0.1:6443" == found.server

    async def test_a_switched_context_does_not_carry_the_operator_away(self, tmp_path: Path) -> None:
        """Credentials are renewed for the context that was chosen at start, whatever is current by now."""
        path = kubeconfig(tmp_path / "x" / "config")
        found = await connect(kubeconfig=str(path))
        config = yaml.safe_load(path.read_text())
        config["current-context"] = "two"
        config["contexts"][1]["context"]["cluster"] = "other"
        config["clusters"].append({"name": "other", "cluster": {"server": "https://elsewhere"}})
        path.write_text(yaml.safe_dump(config))
        assert not await found.renew("Bearer x")
        assert "https://127.0.0.1:6443" == found.server


class TestProxies:
    @pytest.mark.parametrize(
        ("server", "environ", "expected"),
        [
            ("https://api.example:6443", {"https_proxy": "http://proxy:3128"}, "http://proxy:3128"),
            ("https://api.example:6443", {"https_proxy": "http://proxy:3128", "no_proxy": ".example"}, None),
            ("https://127.0.0.1:6443", {"https_proxy": "http://proxy:3128"}, None),
            ("https://api.example:6443", {}, None),
        ],
    )
    async def test_the_environment_names_a_proxy(
        self,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        server: str,
        environ: dict[str, str],
        expected: str | None,
    ) -> None:
        """HTTPS_PROXY and NO_PROXY count as for kubectl; a server on this machine is never reached through a proxy."""
        for name in ("https_proxy", "HTTPS_PROXY", "no_proxy", "NO_PROXY", "all_proxy", "ALL_PROXY"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environ.items():
            monkeypatch.setenv(name, value)
        found = await connect(kubeconfig=str(kubeconfig(tmp_path / "x" / "config", server=server)))
        assert expected == found.proxy


class TestErrors:
    @pytest.mark.parametrize(
        ("content", "said"),
        [
            (None, "does not exist"),
            ("{", "is not usable"),
            ("[]", "is not usable"),
            ("", "is not usable"),
            ("{contexts: [], clusters: [], users: []}", "current-context"),
            ("{current-context: a, contexts: [], clusters: [], users: []}", "Expected object with name a in"),
        ],
    )
    async def test_a_broken_kubeconfig_is_one_line(self, tmp_path: Path, content: str | None, said: str) -> None:
        """Whatever is wrong with it, the message names the file and the trouble."""
        path = tmp_path / "config"
        if content is not None:
            path.write_text(content)
        with pytest.raises(AuthError) as caught:
            await connect(kubeconfig=str(path))
        assert (True, True, False) == (
            str(path) in str(caught.value),
            said in str(caught.value),
            "\n" in str(caught.value),
        )

    async def test_an_unknown_context_is_named(self, tmp_path: Path) -> None:
        """The name that was asked for is in the message."""
        path = kubeconfig(tmp_path / "x" / "config")
        with pytest.raises(AuthError, match="three"):
            await connect(kubeconfig=str(path), context="three")

    async def test_a_server_without_scheme_is_refused(self, tmp_path: Path) -> None:
        """The field, its value and what would be right."""
        path = kubeconfig(tmp_path / "x" / "config", server="10.0.0.1:6443")
        with pytest.raises(AuthError, match=r"cluster.server is '10.0.0.1:6443', which should start with https://"):
            await connect(kubeconfig=str(path))

    async def test_nothing_anywhere(self, tmp_path: Path) -> None:
        """The message lists what can be done."""
        with pytest.raises(AuthError, match="name a kubeconfig, set KUBECONFIG"):
            await connect(environ={"HOME": str(tmp_path)})

    async def test_a_failing_plugin_is_named_with_its_words(self, tmp_path: Path) -> None:
        """What the plugin wrote to stderr is what the user needs."""
        path = kubeconfig(tmp_path / "x" / "config", user=plugin(tmp_path, "echo please log in >&2; exit 3"))
        with pytest.raises(AuthError, match="please log in"):
            await connect(kubeconfig=str(path))

    async def test_a_missing_certificate_is_named(self, tmp_path: Path) -> None:
        """The file that isn't there is in the message."""
        user = {"client-certificate": str(tmp_path / "no.crt"), "client-key": str(tmp_path / "no.key")}
        with pytest.raises(AuthError, match=r"no\.crt"):
            await connect(kubeconfig=str(kubeconfig(tmp_path / "x" / "config", user=user)))


class TestRenewal:
    async def test_a_plugin_is_run_again_after_a_refusal(self, tmp_path: Path) -> None:
        """The server's word counts, also when the plugin promised a longer life; one renewal serves all who waited."""
        count = tmp_path / "count"
        count.write_text("")
        script = f"echo x >> {count}; {credential(chr(34) + 'token' + chr(34) + ':' + chr(34) + 't-$N' + chr(34))}"
        script = script.replace("echo '", "N=$(wc -l < " + str(count) + "); echo '").replace("$N", "'$N'")
        path = kubeconfig(tmp_path / "x" / "config", user=plugin(tmp_path, script))
        found = await connect(kubeconfig=str(path))
        assert "Bearer t-1" == await found.authorization()
        assert [True, True] == [await found.renew("Bearer t-1"), await found.renew("Bearer t-1")]
        assert ("Bearer t-2", 2) == (await found.authorization(), len(count.read_text().split()))

    async def test_kopf_gets_the_same_and_its_end(self, tmp_path: Path) -> None:
        """The plugin's expirationTimestamp tells Kopf when to ask again."""
        status = '"token":"abc","expirationTimestamp":"2126-11-30T12:00:00Z"'
        path = kubeconfig(tmp_path / "x" / "config", user=plugin(tmp_path, credential(status)))
        info = await (await connect(kubeconfig=str(path))).kopf_info()
        assert ("https://127.0.0.1:6443", "Bearer", "abc", True, "ns-one") == (
            info.server,
            info.scheme,
            info.token,
            info.insecure,
            info.default_namespace,
        )
        assert datetime(2126, 11, 30, 12, tzinfo=UTC) == info.expiration

    async def test_a_static_token_never_expires(self, tmp_path: Path) -> None:
        """Kopf is not made to log in again for nothing."""
        info = await (await connect(kubeconfig=str(kubeconfig(tmp_path / "x" / "config")))).kopf_info()
        assert info.expiration is None


class TestInCluster:
    @pytest.fixture
    def account(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
        authority = ssl.get_default_verify_paths().cafile or ssl.get_default_verify_paths().openssl_cafile
        (tmp_path / "ca.crt").write_bytes(Path(authority).read_bytes())
        (tmp_path / "token").write_text("first")
        (tmp_path / "namespace").write_text("gpu-system\n")
        monkeypatch.setattr(auth, "SERVICE_ACCOUNT", tmp_path)
        return tmp_path

    ENVIRON = {"HOME": "/nonexistent", "KUBERNETES_SERVICE_HOST": "fd00::1", "KUBERNETES_SERVICE_PORT": "443"}  # noqa: RUF012

    async def test_the_service_account_is_used(self, account: Path) -> None:
        """Address from the environment (IPv6 too), token, CA and namespace from the mounted files."""
        found = await connect(environ=self.ENVIRON)
        assert ("https://[fd00::1]:443", "gpu-system", "Bearer first") == (
            found.server,
            found.namespace,
            await found.authorization(),
        )

    async def test_kopf_renews_before_the_token_ends(self, account: Path) -> None:
        """A service account token is given to Kopf for 50 minutes."""
        info = await (await connect(environ=self.ENVIRON)).kopf_info()
        assert info.expiration is not None
        left = info.expiration.replace(tzinfo=info.expiration.tzinfo or UTC) - datetime.now(UTC)
        assert timedelta(minutes=49) < left <= timedelta(minutes=50)

    async def test_an_empty_token_is_said(self, account: Path) -> None:
        """A Pod without automounted token learns what is missing."""
        (account / "token").write_text("")
        with pytest.raises(AuthError, match="Token file exists but empty"):
            await connect(environ=self.ENVIRON)


def test_importing_auth_loads_no_client() -> None:
    """Commands that work offline never pay for kubernetes-asyncio or Kopf."""
    code = (
        "import sys, sharepod_operator.kube.auth, sharepod_operator.kube.gateway; "
        "print([name for name in ('kubernetes_asyncio', 'kopf') if name in sys.modules])"
    )
    said = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=60)
    assert "[]" == said.stdout.strip()
