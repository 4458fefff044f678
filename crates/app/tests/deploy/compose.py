"""Starts the services of a Compose file without containers and checks that they answer: compose.py FILE.

It runs in a network and mount namespace of its own, so the ports and host names of the file are free. In place of
each image it starts the program of this machine: `sluicegate`, `redis-server` or `rabbitmq-server`, with the command,
environment, variables and configuration of the file. Services on the network of the host run together. Others have
ports of their own in their containers, so here each service of Sluicegate runs alone.
"""

import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import time
import urllib.error
import urllib.request

import yaml

FILE = pathlib.Path(sys.argv[1]).resolve()
WORK = pathlib.Path.cwd()
DEADLINE_S = 120
# The variables that a user of the files sets.
GIVEN = {
    "INTERNAL_SERVICE_TOKEN": "token-of-the-compose-test",
    "NIVODA_ENDPOINT": "http://127.0.0.1:3999/graphql",
    "NIVODA_USERNAME": "demo",
    "NIVODA_PASSWORD": "demo",
    "CUSTOMER_ENDPOINT": "http://127.0.0.1:3999",
    "GITHUB_URL": "http://127.0.0.1:3999",
    "GITHUB_TOKEN": "token",
    "PROVIDER_URL": "http://127.0.0.1:3999",
}


def interpolated(value):
    """Replaces ${NAME}, ${NAME:-default} and ${NAME:?message}, as Compose does."""
    if isinstance(value, dict):
        return {name: interpolated(inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [interpolated(inner) for inner in value]
    if not isinstance(value, str):
        return value

    def replace(match):
        name, kind, rest = match.groups()
        given = GIVEN.get(name, "")
        assert given or kind == ":-", f"{FILE.name}: {name} is not set"
        return given or rest

    return re.sub(r"\$\{(\w+)(:-|:\?)?([^}]*)\}", replace, value)


def wait_for(what, holds):
    deadline = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < deadline, f"{FILE.name}: no answer from {what}"
        time.sleep(0.1)


def succeeds(command, **options):
    return subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, **options).returncode == 0


def answer(url, body=None, headers=None):
    """Returns status and text of a response, or None if there is none."""
    request = urllib.request.Request(url, body and body.encode(), headers or {})
    try:
        with urllib.request.urlopen(request, timeout=20) as response:
            return response.status, response.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()
    except OSError:
        return None


class Service:
    """A service of the file, as a process of this machine."""

    def __init__(self, name, options, configs):
        self.name, self.options = name, options
        environment = dict(os.environ)
        environment.pop("SLUICEGATE_CONFIG", None)
        if "env_file" in options:
            for line in (FILE.parent / options["env_file"]).read_text().splitlines():
                if line and not line.startswith("#"):
                    variable, value = line.split("=", 1)
                    environment[variable] = value
        environment.update({variable: str(value) for variable, value in options.get("environment", {}).items()})
        image = options.get("image", "sluicegate")
        folder = WORK / name
        folder.mkdir()
        if image.startswith("redis"):
            command = options["command"]
        elif image.startswith("rabbitmq"):
            command = ["rabbitmq-server"]
            environment.update(rabbit_environment(folder, options.get("environment", {})))
        else:
            [config] = options["configs"]
            assert config["target"] == "/etc/sluicegate/sluicegate.yaml", "the image reads this file"
            source = (FILE.parent / configs[config["source"]]["file"]).resolve()
            shutil.copy(source, folder / "sluicegate.yaml")
            environment["SLUICEGATE_CONFIG"] = str(folder / "sluicegate.yaml")
            # The command of the image without one of its own is `serve`.
            command = ["sluicegate", *options.get("command", ["serve"])]
        self.is_ours = image == "sluicegate"
        self.environment, self.command, self.folder = environment, command, folder
        self.process = None

    def start(self):
        with (WORK / f"{self.name}.log").open("w") as log, (self.folder / "decisions").open("w") as out:
            self.process = subprocess.Popen(
                self.command, env=self.environment, cwd=self.folder, stdout=out, stderr=log
            )
        wait_for(self.name, self.is_healthy)
        print(f"{FILE.name}: {self.name}: healthy", flush=True)

    def is_healthy(self):
        assert self.process.poll() is None, f"{FILE.name}: {self.name} has ended: see its log"
        if self.options.get("image", "").startswith("rabbitmq"):
            return succeeds(["bash", "-c", "exec 3<> /dev/tcp/127.0.0.1/5672"])
        # The command of the image if the file has none.
        test = self.options.get("healthcheck", {}).get("test", ["CMD", "sluicegate", "health"])
        assert test[0] == "CMD", test
        return succeeds(test[1:], env=self.environment)

    def stop(self):
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(DEADLINE_S)


def rabbit_environment(folder, options):
    """Settings of a node below a folder, with the login that the image would create."""
    user, password = options.get("RABBITMQ_DEFAULT_USER", "guest"), options.get("RABBITMQ_DEFAULT_PASS", "guest")
    settings = [
        "listeners.tcp.1 = 127.0.0.1:5672", f"default_user = {user}", f"default_pass = {password}",
        "log.console = false", "disk_free_limit.absolute = 10MB", "vm_memory_high_watermark.absolute = 1GB",
    ]
    (folder / "rabbitmq.conf").write_text("\n".join(settings) + "\n")
    (folder / "plugins").write_text("[].")
    (folder / "env.conf").touch()
    erlang = f"+S 2:2 +sbwt none {options.get('RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS', '')}"
    return {
        "PATH": f"/usr/lib/rabbitmq/bin:{os.environ['PATH']}",
        "HOME": str(folder), "RABBITMQ_BASE": str(folder), "RABBITMQ_MNESIA_BASE": str(folder / "mnesia"),
        "RABBITMQ_LOG_BASE": str(folder), "RABBITMQ_LOGS": str(WORK / "rabbitmq-server.log"),
        "RABBITMQ_NODENAME": "compose@localhost", "RABBITMQ_CONFIG_FILE": str(folder / "rabbitmq"),
        "RABBITMQ_CONF_ENV_FILE": str(folder / "env.conf"), "RABBITMQ_ENABLED_PLUGINS_FILE": str(folder / "plugins"),
        "RABBITMQ_PID_FILE": str(folder / "pid"), "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS": erlang,
    }


def first_answer(name):
    """Checks what the services of this example are for."""
    json = {"content-type": "application/json"}
    allow = "http://127.0.0.1:8080/rate-limit/allow"
    if FILE.name in ("inference-limiter.yaml", "assistant-api.yaml"):
        status, text = answer(allow, '{"userId": "u1", "modelId": "gpt4"}', json)
        assert status == 200 and '"allowed":true' in text, text
        keys = subprocess.run(["redis-cli", "keys", "*u1*"], capture_output=True, text=True, check=True).stdout
        assert keys.strip(), "the usage is in Redis"
    elif FILE.name == "ingestion-proxy.yaml":
        token = {"x-internal-token": GIVEN["INTERNAL_SERVICE_TOKEN"], **json}
        port, headers = {"proxy": (3001, token), "customers": (3002, json)}[name]
        status, text = answer(f"http://127.0.0.1:{port}/graphql", '{"query": "{ items }"}', headers)
        assert status == 200, text
    elif FILE.name == "two-tier-dispatch.yaml":
        send = ["sluicegate", "queue", "send", "raw-analysis-queue", '{"AnalysisId": "a-1", "ImageUrls": []}']
        subprocess.run(send, env=services["dispatcher"].environment, check=True)
        # The dispatcher forwards it to the queue of openai, and its worker sends it to the provider.
        wait_for("the worker", lambda: metric(9091, 'sluicegate_worker_done_total{provider="openai"}') == "1")
    elif FILE.name == "crawler-queue.yaml":
        send = ["sluicegate", "queue", "send", "crawl-org", '{"type": "crawl_org", "org": "acme"}']
        subprocess.run(send, env=services["sluicegate"].environment, check=True)
        wait_for("the worker", lambda: metric(9090, 'sluicegate_worker_done_total{provider="github"}') == "1")
    else:
        raise AssertionError(f"{FILE.name} is not known here")
    print(f"{FILE.name}: {name}: answers", flush=True)


def metric(port, name):
    text = (answer(f"http://127.0.0.1:{port}/metrics") or (0, ""))[1]
    return next((line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith(name + " ")), None)


compose = interpolated(yaml.safe_load(FILE.read_text()))
# Compose merges `<<: *anchor` before it reads the services; PyYAML has done so.
services = {name: Service(name, options, compose["configs"]) for name, options in compose["services"].items()}
others = [service for service in services.values() if not service.is_ours]
ours = [service for service in services.values() if service.is_ours]
for service in others:
    service.start()
if all(service.options.get("network_mode") == "host" for service in ours):
    for service in ours:
        service.start()
    first_answer(ours[0].name)
else:
    for service in ours:
        service.start()
        first_answer(service.name)
        service.stop()
