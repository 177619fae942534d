"""Whether a tier's bucket can be written with its keys, over plain HTTP(S), without a boot.

One small object is put under the tier's prefix and deleted again: that needs what the tier needs, neither more (no
right to list) nor less. Requests are signed by botocore's own signer where it is installed (extra ``s3``).
"""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from pytest_kvoffload.engine.preflight.needs import ObjectStore
from pytest_kvoffload.engine.preflight.report import Check

if TYPE_CHECKING:
    import requests

_TIMEOUT_SECONDS = (3.0, 10.0)
_LARGEST_ANSWER_BYTES = 65536
_NO_SIGNER = "the keys were not tried: pip install 'pytest-kvoffload[s3]' lets preflight sign a request"

# Error codes of the S3 API: what each means for a tier, and what to do.
_CODES: Mapping[str, tuple[str, str]] = {
    "NoSuchBucket": ("the bucket does not exist", "create the bucket, or correct its name"),
    "InvalidAccessKeyId": ("the access key is unknown", "correct access_key"),
    "SignatureDoesNotMatch": ("the secret key does not belong to the access key", "correct secret_key"),
    "InvalidToken": ("the session token is invalid", "renew session_token"),
    "ExpiredToken": ("the session token has expired", "renew session_token"),
    "AccessDenied": ("the keys may not write to this bucket", "allow PutObject, GetObject and HeadObject under prefix"),
    "AllAccessDisabled": ("the bucket is disabled", "ask the owner of the bucket"),
    "RequestTimeTooSkewed": ("this machine's clock is wrong", "set the clock"),
    "PermanentRedirect": ("the bucket is in another region", "correct region and endpoint_override"),
    "AuthorizationHeaderMalformed": ("the region is wrong", "correct region"),
    "InvalidBucketName": ("the bucket's name is not legal", "correct the bucket's name (three letters or more)"),
}


def check_object_store(store: ObjectStore, *, env: Mapping[str, str]) -> Check:
    """Try the store; see the module's text.

    Args:
        store: endpoint, bucket and keys.
        env: the server's environment, where keys are looked for that the store does not name.
    """
    import requests

    name = f"object store {store.bucket} at {store.endpoint or '(no endpoint)'}"
    needed = "a bucket that these keys can write to"
    if not store.endpoint:
        return Check(
            name=name,
            status="fail",
            saw="store_config has no endpoint_override",
            needed=needed,
            remedy="set endpoint_override to host:port",
        )
    key = "/".join(part for part in (store.prefix.strip("/"), f".kvoffload-preflight-{uuid.uuid4().hex}") if part)
    url = f"{store.url}/{quote(store.bucket)}/{quote(key)}"
    credentials = _credentials(store, env)
    with requests.Session() as session:
        session.trust_env = False  # no netrc: its password would replace the signature
        try:
            if credentials is None:
                return _unsigned(session, store, name, needed)
            answer = _send(session, "PUT", url, b"kvoffload", store, credentials)
            if answer.status_code in (200, 201, 204):
                gone = _send(session, "DELETE", url, b"", store, credentials)
                return _written(name, needed, key, gone.status_code)
        except requests.exceptions.SSLError as error:
            return Check(
                name=name,
                status="fail",
                saw=f"TLS failed: {_reason(error)}",
                needed=needed,
                remedy='set ca_bundle, correct the host name, or use scheme "http" where the store speaks no TLS',
            )
        except requests.exceptions.ConnectionError as error:
            return Check(
                name=name,
                status="fail",
                saw=f"unreachable: {_reason(error)}",
                needed=needed,
                remedy="start the store, or correct endpoint_override (host:port) and scheme",
            )
        except requests.exceptions.Timeout:
            return Check(
                name=name,
                status="fail",
                saw=f"no answer within {_TIMEOUT_SECONDS[1]:.0f} s",
                needed=needed,
                remedy="correct endpoint_override, or let the network reach it",
            )
        except requests.exceptions.RequestException as error:
            return Check(
                name=name, status="fail", saw=str(error), needed=needed, remedy="correct endpoint_override and scheme"
            )
    return _refused(name, needed, answer)


def _send(
    session: requests.Session, method: str, url: str, body: bytes, store: ObjectStore, credentials: Any
) -> requests.Response:
    from botocore.auth import S3SigV4Auth
    from botocore.awsrequest import AWSRequest

    request = AWSRequest(method=method, url=url, data=body)
    request.context["client_config"] = None
    S3SigV4Auth(credentials, "s3", store.region).add_auth(request)
    return session.request(
        method,
        url,
        data=body,
        headers=dict(request.headers.items()),
        timeout=_TIMEOUT_SECONDS,
        verify=store.ca_bundle or True,
        allow_redirects=False,
    )


def _credentials(store: ObjectStore, env: Mapping[str, str]) -> Any:
    """Return botocore's credentials, ``None`` without botocore or without keys."""
    try:
        from botocore.credentials import Credentials
        from botocore.session import Session
    except ImportError:
        return None
    if store.access_key and store.secret_key:
        return Credentials(store.access_key, store.secret_key, store.session_token)
    access, secret = env.get("AWS_ACCESS_KEY_ID"), env.get("AWS_SECRET_ACCESS_KEY")
    if access and secret:
        return Credentials(access, secret, env.get("AWS_SESSION_TOKEN"))
    return Session().get_credentials()


def _unsigned(session: requests.Session, store: ObjectStore, name: str, needed: str) -> Check:
    """Without signer or keys: say at least whether a server answers and whether the bucket is there."""
    answer = session.get(
        f"{store.url}/{quote(store.bucket)}",
        params={"list-type": "2", "max-keys": "1"},
        timeout=_TIMEOUT_SECONDS,
        verify=store.ca_bundle or True,
        allow_redirects=False,
    )
    code, _ = _error_code(answer)
    if answer.status_code == 404 or code == "NoSuchBucket":
        return _refused(name, needed, answer)
    try:
        import botocore  # noqa: F401
    except ImportError:
        why = _NO_SIGNER
    else:
        why = "no keys: neither in store_config nor in the environment, a credential file or a role"
    return Check(name=name, status="skip", saw=f"the store answers (HTTP {answer.status_code}); {why}", needed=needed)


def _written(name: str, needed: str, key: str, deleted: int) -> Check:
    if deleted in (200, 202, 204):
        return Check(name=name, status="ok", saw="an object was written and deleted again", needed=needed)
    return Check(
        name=name,
        status="warn",
        saw=f"an object was written, and deleting it was refused (HTTP {deleted}): {key} is left behind",
        needed=needed,
        remedy="allow DeleteObject, or remove the object by hand",
    )


def _refused(name: str, needed: str, answer: requests.Response) -> Check:
    code, message = _error_code(answer)
    meaning, remedy = _CODES.get(code or "", ("", ""))
    if not meaning and answer.status_code == 404:
        meaning, remedy = _CODES["NoSuchBucket"]
    elif not meaning and answer.status_code == 403:
        meaning, remedy = "the keys are refused", "correct access_key and secret_key, and what they may do"
    elif not meaning:
        meaning, remedy = message or "the store refuses", "correct endpoint_override, scheme and bucket"
    code_text = f"HTTP {answer.status_code}" + (f", {code}" if code else "")
    return Check(name=name, status="fail", saw=f"{meaning} ({code_text})", needed=needed, remedy=remedy)


def _error_code(answer: requests.Response) -> tuple[str | None, str]:
    """Return code and message of an S3 error document; ``None`` where the answer is none."""
    from xml.etree import ElementTree

    if not answer.content or len(answer.content) > _LARGEST_ANSWER_BYTES or b"<!DOCTYPE" in answer.content:
        return None, ""
    try:
        root = ElementTree.fromstring(answer.content)
    except ElementTree.ParseError:
        return None, ""
    texts = {element.tag.rpartition("}")[2]: (element.text or "").strip() for element in root.iter()}
    return texts.get("Code") or None, texts.get("Message", "")


def _reason(error: Exception) -> str:
    """Return the innermost cause of an error of requests: its own text repeats the URL and three wrappers."""
    inner: BaseException = error
    while (deeper := _inside(inner)) is not None:
        inner = deeper
    return str(inner)


def _inside(error: BaseException) -> BaseException | None:
    reason = getattr(error, "reason", None)
    for candidate in (reason, error.__cause__, *error.args):
        if isinstance(candidate, BaseException) and candidate is not error:
            return candidate
    return None
