"""All calls to a cluster: objects as plain values, through the official client, which is imported only here.

A call that may succeed later raises TemporaryError, a refusal Denied."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from everstep import env
from everstep.errors import PermanentError, TemporaryError, UsageError

if TYPE_CHECKING:
    from kubernetes.client import ApiClient

Object = Mapping[str, Any]

NOT_FOUND, CONFLICT, FORBIDDEN = 404, 409, 403
_KINDS = {  # the API that has it, and how it is called in the names of its calls
    "ConfigMap": ("CoreV1Api", "config_map"),
    "PersistentVolumeClaim": ("CoreV1Api", "persistent_volume_claim"),
    "Pod": ("CoreV1Api", "pod"),
    "Secret": ("CoreV1Api", "secret"),
    "Service": ("CoreV1Api", "service"),
    "ServiceAccount": ("CoreV1Api", "service_account"),
    "Job": ("BatchV1Api", "job"),
    "Role": ("RbacAuthorizationV1Api", "role"),
    "RoleBinding": ("RbacAuthorizationV1Api", "role_binding"),
}
_TRIES_AGAIN = (408, 409, 429, 500, 502, 503, 504)
_ANSWER_S = 30.0
_OWN_NAMESPACE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")  # of this pod


class Denied(PermanentError):
    """The cluster refused a call."""

    def __init__(self, message: str, *, status: int, hint: str | None = None, code: str = "") -> None:
        super().__init__(message, hint=hint, code=code)
        self.status = status


class Namespace:
    """One namespace of it."""

    def __init__(self, client: ApiClient, namespace: str) -> None:
        self.client, self.namespace = client, namespace

    @classmethod
    def open(cls, *, context: str = "", namespace: str = "") -> Namespace:
        """By the kubeconfig; inside a pod without one, by the pod's own account."""
        config, client = import_client()
        try:
            if env.value("KUBERNETES_SERVICE_HOST") and not env.value("KUBECONFIG"):
                configuration = client.Configuration()
                config.load_incluster_config(client_configuration=configuration)
                return cls(client.ApiClient(configuration), namespace or _OWN_NAMESPACE.read_text().strip())
            file = env.value("KUBECONFIG")  # the client itself reads the variable only when it is imported
            chosen = _context(config, context, file)
            configuration = client.Configuration()
            config.load_kube_config(file, context=context or None, client_configuration=configuration)
            return cls(client.ApiClient(configuration), namespace or chosen.get("namespace") or "default")
        except (config.ConfigException, OSError) as error:
            raise UsageError(
                f"no cluster is configured: {error}",
                hint="set KUBECONFIG, or create ~/.kube/config",
                code="kubernetes-not-configured",
            ) from None

    @property
    def server(self) -> str:
        """The URL of its API server."""
        return str(self.client.configuration.host)

    def version(self) -> str:
        from kubernetes.client import VersionApi

        with _translated():
            return str(VersionApi(self.client).get_code(_request_timeout=_ANSWER_S).git_version)

    def create(self, each: Object) -> Object:
        made: Object = self._call("create", each["kind"], body=each)
        return made

    def get(self, kind: str, name: str) -> Object | None:
        try:
            found: Object = self._call("read", kind, name=name)
            return found
        except Denied as error:
            if error.status != NOT_FOUND:
                raise
            return None

    def find(self, kind: str, selector: str) -> list[Object]:
        found: list[Object] = self._call("list", kind, label_selector=selector)["items"]
        return found

    def patch(self, kind: str, name: str, change: Object) -> None:
        self._call("patch", kind, name=name, body=change)

    def delete(self, kind: str, name: str, *, grace_s: int | None = None) -> None:
        """A missing object counts as deleted."""
        grace = {} if grace_s is None else {"grace_period_seconds": grace_s}
        try:
            self._call("delete", kind, name=name, propagation_policy="Background", **grace)
        except Denied as error:
            if error.status != NOT_FOUND:
                raise

    def log(self, pod: str, *, follow: bool) -> Iterator[str]:
        """Its lines; with `follow`, until its end. Ends early where the connection does."""
        from kubernetes.client import CoreV1Api

        with _translated():
            reply: Any = CoreV1Api(self.client).read_namespaced_pod_log(
                pod, self.namespace, container="main", follow=follow, _preload_content=False
            )
        try:
            yield from _lines(reply)
        finally:
            reply.release_conn()

    def _call(self, verb: str, kind: str, **given: Any) -> Any:
        """As plain values: the client's own classes know only the fields of one version."""
        from kubernetes import client

        api, noun = _KINDS[kind]
        call = getattr(getattr(client, api)(self.client), f"{verb}_namespaced_{noun}")
        with _translated():
            reply = call(namespace=self.namespace, _preload_content=False, _request_timeout=_ANSWER_S, **given)
            return json.loads(reply.data)


def import_client() -> tuple[Any, Any]:
    try:
        from kubernetes import client, config
    except ImportError:
        message = "the Kubernetes client is missing"
        raise UsageError(message, hint="pip install 'everstep[kubernetes]'", code="kubernetes-client-missing") from None
    return config, client


def _context(config: Any, wanted: str, file: str | None) -> Object:
    contexts, current = config.list_kube_config_contexts(file)
    named: dict[str, Object] = {each["name"]: each["context"] for each in contexts}
    if wanted and wanted not in named:
        message = f"the kubeconfig has no context {wanted!r}"
        raise UsageError(message, hint=f"one of {', '.join(named)}", code="kubernetes-context-unknown")
    return named[wanted] if wanted else current["context"] if current else {}


@contextmanager
def _translated() -> Iterator[None]:
    from kubernetes.client import ApiException
    from urllib3.exceptions import HTTPError

    try:
        yield
    except ApiException as error:
        message = _message(error)
        if error.status in _TRIES_AGAIN and error.status != CONFLICT:
            raise TemporaryError(f"the cluster answers {error.status}: {message}", code="kubernetes-busy") from None
        raise Denied(message, status=error.status or 0, code="kubernetes-denied") from None
    except HTTPError as error:
        raise TemporaryError(f"the cluster does not answer: {error}", code="kubernetes-no-answer") from None


def _message(error: Any) -> str:
    try:
        return str(json.loads(error.body)["message"])
    except (ValueError, TypeError, KeyError):
        return f"{error.status} {error.reason}"


def _lines(reply: Any) -> Iterator[str]:
    from urllib3.exceptions import HTTPError

    rest = b""
    try:
        for chunk in reply.stream(1 << 16, decode_content=False):
            *lines, rest = (rest + chunk).split(b"\n")
            yield from (line.decode(errors="replace") for line in lines)
    except HTTPError:  # the node went away
        pass
    if rest:
        yield rest.decode(errors="replace")
