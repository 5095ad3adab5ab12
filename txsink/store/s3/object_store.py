"""A store of s3fs as another client of S3 is told of it: object_store, which deltalake reads and writes with.

Promises: the same endpoint, region, addressing and credentials that s3fs itself uses, wherever it has them from
(options, a profile, the environment, a role), and none besides; credentials that expire are asked for anew each time;
who pays for requests, and keys of encryption.
Relies on: s3fs and aiobotocore, who have resolved them all.
Does not promise: options that object_store has no word for, as headers and access lists are; a file of certificates it
takes from the environment alone (SSL_CERT_FILE). What it is told holds secrets, for its ears alone.
"""

from __future__ import annotations

from base64 import b64encode
from typing import Any
from urllib.parse import quote

from botocore import UNSIGNED
from botocore.credentials import EnvProvider
from s3fs import S3FileSystem

from txsink.store.protocol import StorageOptions

_NO_REGION = "us-east-1"  # where a signature has to name one, and nobody did
_GLOBAL = "aws-global"
_TOKENS = ("AWS_SESSION_TOKEN", "AWS_TOKEN")  # where object_store looks for a token that it was not given
_NAMES = ("aws_access_key_id", "aws_secret_access_key", "aws_session_token")


def uri_of(path: str) -> str:
    """A path as a URI, which object_store decodes."""
    return f"s3:/{quote(path)}"


async def told(bucket: str, deadline_seconds: float, client: S3FileSystem) -> StorageOptions:
    """What object_store needs to reach a bucket as this client does."""
    await client.set_session()
    meta = (await client.get_s3(bucket)).meta
    found = {
        "aws_region": meta.region_name if meta.region_name not in {None, _GLOBAL} else _NO_REGION,
        "timeout": f"{deadline_seconds:g}s",
        "connect_timeout": f"{meta.config.connect_timeout:g}s",
        "retry_timeout": f"{deadline_seconds:g}s",
        **_where(meta.endpoint_url, bucket, (meta.config.s3 or {}).get("addressing_style")),
    }
    if (client.client_kwargs or {}).get("verify") is False:
        found["allow_invalid_certificates"] = "true"
    found.update(_usual({**(client.s3_additional_kwargs or {}), **(client.req_kw or {})}))
    if meta.config.signature_version is UNSIGNED:
        return StorageOptions(found, aws_skip_signature="true")
    return StorageOptions(found, **await _credentials(client))


def _where(endpoint: str, bucket: str, style: str | None) -> dict[str, str]:
    found = {"aws_allow_http": "true"} if endpoint.startswith("http://") else {}
    if style != "virtual":
        return {**found, "aws_endpoint_url": endpoint, "aws_virtual_hosted_style_request": "false"}
    scheme, _, host = endpoint.partition("://")
    return {**found, "aws_endpoint_url": f"{scheme}://{bucket}.{host}", "aws_virtual_hosted_style_request": "true"}


def _usual(arguments: dict[str, Any]) -> StorageOptions:
    """What goes with every request: who pays, and how objects are encrypted."""
    found = StorageOptions()
    if arguments.get("RequestPayer"):
        found["aws_request_payer"] = "true"
    if kind := arguments.get("ServerSideEncryption"):
        found["aws_server_side_encryption"] = str(kind)
    if key_id := arguments.get("SSEKMSKeyId"):
        found["aws_sse_kms_key_id"] = str(key_id)
    if arguments.get("BucketKeyEnabled"):
        found["aws_sse_bucket_key_enabled"] = "true"
    if key := arguments.get("SSECustomerKey"):
        data = key.encode() if isinstance(key, str) else bytes(key)
        found["aws_server_side_encryption"] = "sse-c"
        found["aws_sse_customer_key_base64"] = b64encode(data).decode()
    return found


async def _credentials(client: S3FileSystem) -> StorageOptions:
    found = StorageOptions(zip(_NAMES, (client.key, client.secret, client.token), strict=True))
    found.update((name, value) for name, value in (client.client_kwargs or {}).items() if name in _NAMES)
    if not found[_NAMES[0]]:
        resolved = await client.session.get_credentials()
        if resolved is None:
            return StorageOptions()
        frozen = await resolved.get_frozen_credentials()
        found = StorageOptions(zip(_NAMES, (frozen.access_key, frozen.secret_key, frozen.token), strict=True))
    known = StorageOptions((name, value) for name, value in found.items() if value)
    if _NAMES[2] not in known and any(map(EnvProvider().environ.get, _TOKENS)):
        known[_NAMES[2]] = ""  # else object_store sends the environment's, which belongs to other keys
    return known
