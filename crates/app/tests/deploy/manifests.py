"""Builds the kustomizations of deploy/kubernetes, validates the result against the schemas of Kubernetes, and
parses the Terraform and Compose files. Prints one line per resource; fails at the first mistake.

The builder knows the parts of kustomize that the files use: resources, strategic merge patches, namePrefix and
configMapGenerator. Debian's kubernetes-client has kustomize 2.0, which does not know folders in `resources` and paths in
`patches`, and no package registry has a newer one.
"""

import pathlib
import re
import sys

import hcl2
import kubernetes_validate
import yaml

VERSIONS = ["1.27", "1.30", "1.36"]
# Keys by which strategic merge patches match the elements of a list.
# Ports of containers and of Services have different ones.
MERGE_KEYS = {"containers": ["name"], "ports": ["containerPort", "port"], "volumes": ["name"], "env": ["name"]}


def merged(old, new, key=None):
    if isinstance(old, dict) and isinstance(new, dict):
        result = dict(old)
        for name, value in new.items():
            result[name] = merged(old[name], value, name) if name in old else value
        return result
    if isinstance(old, list) and isinstance(new, list):
        merge_keys = (k for k in MERGE_KEYS.get(key, []) if all(k in element for element in old + new))
        merge_key = next(merge_keys, None)
        if not merge_key:
            return new
        by_key = {element[merge_key]: element for element in old}
        for element in new:
            by_key[element[merge_key]] = merged(by_key.get(element[merge_key], {}), element)
        return list(by_key.values())
    return new


def documents(path):
    return [document for document in yaml.safe_load_all(path.read_text()) if document]


def build(folder):
    config = yaml.safe_load((folder / "kustomization.yaml").read_text())
    known = {"apiVersion", "kind", "resources", "patches", "namePrefix", "configMapGenerator", "generatorOptions"}
    assert set(config) <= known, f"{folder}: unknown fields {set(config) - known}"
    resources = []
    for name in config["resources"]:
        path = folder / name
        resources += build(path) if path.is_dir() else documents(path)
    for patch in config.get("patches", []):
        for document in documents(folder / patch["path"]):
            names = (document["kind"], document["metadata"]["name"])
            targets = [r for r in resources if (r["kind"], r["metadata"]["name"]) == names]
            assert len(targets) == 1, f"{folder}: the patch {patch['path']} has {len(targets)} targets"
            resources[resources.index(targets[0])] = merged(targets[0], document)
    for generator in config.get("configMapGenerator", []):
        data = {file: (folder / file).read_text() for file in generator["files"]}
        resources.append({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": generator["name"]}, "data": data})
    return resources


def validate(folder):
    resources = build(folder)
    names = {(r["kind"], r["metadata"]["name"]) for r in resources}
    for resource in resources:
        kind, name = resource["kind"], resource["metadata"]["name"]
        if kind == "ServiceMonitor":
            (service,) = [r for r in resources if r["kind"] == "Service"]
            labels = resource["spec"]["selector"]["matchLabels"]
            assert labels.items() <= service["metadata"]["labels"].items(), "the ServiceMonitor selects no Service"
            ports = {port["name"] for port in service["spec"]["ports"]}
            assert all(e["port"] in ports for e in resource["spec"]["endpoints"]), "unknown port"
        elif kind == "PodMonitor":
            labels = resource["spec"]["selector"]["matchLabels"]
            pods = [r["spec"]["template"] for r in resources if r["kind"] == "Deployment"]
            pods = [pod for pod in pods if labels.items() <= pod["metadata"]["labels"].items()]
            assert pods, "the PodMonitor selects no pod"
            for pod in pods:
                ports = {port["name"] for port in pod["spec"]["containers"][0]["ports"]}
                assert all(e["port"] in ports for e in resource["spec"]["podMetricsEndpoints"]), "unknown port"
        else:
            for version in VERSIONS:
                kubernetes_validate.validate(resource, version, strict=True)
        if kind == "Deployment":
            pod = resource["spec"]["template"]
            selector = resource["spec"]["selector"]["matchLabels"]
            assert selector.items() <= pod["metadata"]["labels"].items(), f"{name}: the selector does not match"
            for volume in pod["spec"]["volumes"]:
                assert ("ConfigMap", volume["configMap"]["name"]) in names, f"{name}: no ConfigMap {volume}"
            for container in pod["spec"]["containers"]:
                security = container["securityContext"]
                assert security["readOnlyRootFilesystem"] and not security["allowPrivilegeEscalation"], container["name"]
                ports = {port.get("name") for port in container.get("ports", [])}
                for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
                    handler = container.get(probe, {})
                    action = handler.get("httpGet") or handler.get("tcpSocket")
                    assert not action or action["port"] in ports, f"{name}: {probe} of an unknown port"
            assert pod["spec"]["securityContext"]["runAsNonRoot"], name
        if kind == "HorizontalPodAutoscaler":
            assert ("Deployment", resource["spec"]["scaleTargetRef"]["name"]) in names, name
        print(f"{folder.name}: {kind} {name}")


def check_workers(folder):
    """Every provider of the dispatcher has a Deployment of workers with its limit."""
    config = yaml.safe_load((folder / "sluicegate.yaml").read_text())
    deployments = [r for r in build(folder) if r["kind"] == "Deployment"]
    environments = [d["spec"]["template"]["spec"]["containers"][0].get("env", []) for d in deployments]
    workers = [{v["name"]: v["value"] for v in environment} for environment in environments if environment]
    limits = {worker["PROVIDER_FIXED"]: worker["RATE_LIMIT"] for worker in workers}
    assert set(limits) == set(config["dispatch"]["providers"]), f"workers of {sorted(limits)}"
    for name, provider in config["dispatch"]["providers"].items():
        # ${OPENAI_RATE_LIMIT:-5000}/min
        assert provider["limit"].endswith(f":-{limits[name]}}}/min"), f"{name}: {limits[name]} is not {provider['limit']}"


# The sizes and settings of the deployment that the ingestion proxy replaces.
REQUIRED = {
    "proxy.tf": {"cpu = 0.25", 'memory = "0.5Gi"', "external_enabled = false"},
    "customers.tf": {"min_replicas = 2", "max_replicas = 10"},
    "redis.tf": {'minimum_tls_version = "1.2"', 'maxmemory_policy = "noeviction"'},
}


def sensitive_variables(path):
    """Names of the Terraform variables that are marked as sensitive."""
    blocks = re.findall(r'^variable "(\w+)" \{\n(.*?)^\}', path.read_text(), re.MULTILINE | re.DOTALL)
    names = [name for name, body in blocks if re.search(r"^ *sensitive *= *true", body, re.MULTILINE)]
    assert len(names) > 2, names
    return names


def branches_on(names, text):
    """Sensitive variables on which an expression branches. Its whole result would be sensitive."""
    text = re.sub(r"nonsensitive\([^()]*\)", "", text)
    return [name for name in names if re.search(rf"var\.{name}\b *(==|!=|\?|>|<)", text)]


def main():
    assert branches_on(["a"], 'var.a != "" ? {} : {}') == ["a"]
    assert branches_on(["a"], 'nonsensitive(var.a != "") ? { x = var.a } : {}') == []
    deploy = pathlib.Path(sys.argv[1])
    for folder in sorted((deploy / "kubernetes").iterdir()):
        if (folder / "kustomization.yaml").exists() and folder.name != "base":
            validate(folder)
    check_workers(deploy / "kubernetes/dispatch")
    for path in sorted((deploy / "compose").glob("*.yaml")):
        compose = yaml.safe_load(path.read_text())
        for config in compose["configs"].values():
            assert (path.parent / config["file"]).resolve().exists(), f"{path.name}: no {config['file']}"
        for name, service in compose["services"].items():
            used = {config["source"] for config in service.get("configs", [])}
            assert used <= set(compose["configs"]), f"{path.name}: {name}"
            if "build" in service:
                dockerfile = path.parent / service["build"]["context"] / service["build"]["dockerfile"]
                assert dockerfile.resolve().exists(), f"{path.name}: no {dockerfile}"
                assert service["read_only"] and service["cap_drop"] == ["ALL"], f"{path.name}: {name}"
        print(f"compose: {path.name}")
    secret_names = sensitive_variables(deploy / "azure/variables.tf")
    for path in sorted((deploy / "azure").glob("*.tf")):
        with path.open() as file:
            parsed = hcl2.load(file)
        assert parsed, f"{path.name} is empty"
        branches = branches_on(secret_names, path.read_text())
        assert not branches, f"{path.name}: put nonsensitive(…) around the test of {branches}: for_each refuses secret values"
        texts = {line.strip() for line in path.read_text().splitlines()}
        texts = {" ".join(text.split()) for text in texts}
        missing = REQUIRED.get(path.name, set()) - texts
        assert not missing, f"{path.name} does not say {missing}"
        print(f"terraform: {path.name}: {', '.join(sorted(key for key in parsed if not key.startswith('__')))}")
    load = yaml.safe_load((deploy / "load/artillery.yaml").read_text())
    assert load["config"]["target"] == "{{ $env.TARGET }}", load["config"]
    rates = [phase["arrivalRate"] for phase in load["config"]["phases"]]
    assert min(rates) < 25 < max(rates), f"below and above the contract: {rates}"
    # Without the plugins, Artillery ignores `ensure` and `expect`.
    assert set(load["config"]["plugins"]) == {"ensure", "expect"}, load["config"]
    [scenario] = load["scenarios"]
    request = scenario["flow"][0]["post"]
    assert request["url"] == "/graphql" and "x-internal-token" in request["headers"], request
    print("load: artillery.yaml")


main()
