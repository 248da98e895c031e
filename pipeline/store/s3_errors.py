"""What boto3 raises, said as a cause and a next step.

Codes: the S3 API reference, "Error responses". An answer to HEAD has no body, so its code is the bare HTTP status.
"""

from __future__ import annotations

from json import JSONDecodeError

from botocore import exceptions as boto
from botocore.exceptions import BotoCoreError, ClientError

from configs.errors import StorageError

FOREIGN = (BotoCoreError, ClientError, ValueError)
"""What a call through boto3 may raise; ValueError is its answer to a malformed endpoint."""

_DENIED = "this identity may not do that; the actions it needs stand in docs/storage.md"
_REGION = "the bucket lies in another region; set storage.region to it"
_EXPIRED = "the credentials have expired; renew them, or use a profile or role that boto3 can refresh"
_FULL = "the store is full; free some space and resume"

NEXT_STEP = {
    "NoSuchBucket": "there is no such bucket at this endpoint; "
    "create it, or correct sink.path, source.path or storage.endpoint_url",
    "404": "no S3 store answers there, or none that knows the bucket; check storage.endpoint_url and the bucket's name",
    "InvalidBucketName": "that is no bucket name; correct sink.path or source.path",
    "InvalidAccessKeyId": "the access key is unknown at this endpoint; check AWS_ACCESS_KEY_ID or storage.profile",
    "SignatureDoesNotMatch": "the secret key is wrong; check AWS_SECRET_ACCESS_KEY or storage.profile",
    "AccessDenied": _DENIED,
    "AllAccessDisabled": _DENIED,
    "403": f"access denied: wrong key, or {_DENIED}",
    "ExpiredToken": _EXPIRED,
    "ExpiredTokenException": _EXPIRED,
    "TokenRefreshRequired": _EXPIRED,
    "InvalidToken": "the session token is wrong; check AWS_SESSION_TOKEN, which belongs to temporary keys only",
    "RequestTimeTooSkewed": "this machine's clock is more than 15 minutes off; set it (NTP)",
    "PermanentRedirect": _REGION,
    "301": _REGION,
    "AuthorizationHeaderMalformed": _REGION,
    "IllegalLocationConstraintException": _REGION,
    "BadDigest": "the bytes changed on their way; try again, and suspect a proxy if it happens again",
    "EntityTooLarge": "the object is too large for this store; write smaller shards (shard.target_seconds)",
    "QuotaExceeded": _FULL,
    "InsufficientStorage": _FULL,
    "507": _FULL,
    "NotImplemented": "this store lacks a function that commits need (docs/storage.md); upgrade it or use another",
    "InvalidObjectState": "the object is archived; restore it first",
    "SlowDown": "the store asked to slow down, also after all tries; run fewer workers or raise storage.max_attempts",
    "KMS.DisabledException": "the key of storage.kms_key_id is disabled; enable it",
    "KMS.NotFoundException": "there is no key storage.kms_key_id in this region; correct it",
}

_NO_CREDENTIALS = "no usable credentials; set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, storage.profile, or a role"
_BROKE_OFF = "the answer broke off, also after all tries; check the network"
_UNREACHABLE = "the endpoint does not answer; check storage.endpoint_url, storage.region, the network and the proxy"

CAUSES: tuple[tuple[type[Exception], str], ...] = (
    (boto.ProfileNotFound, "correct storage.profile or AWS_PROFILE"),
    (boto.NoCredentialsError, _NO_CREDENTIALS),
    (boto.PartialCredentialsError, _NO_CREDENTIALS),
    (boto.CredentialRetrievalError, _NO_CREDENTIALS),
    (boto.TokenRetrievalError, "log in again (aws sso login)"),
    (boto.SSOError, "log in again (aws sso login)"),
    (boto.SSLError, "check the certificate, or give AWS_CA_BUNDLE the store's own"),
    (boto.ProxyConnectionError, "the proxy does not answer; check HTTPS_PROXY and NO_PROXY"),
    (boto.ResponseStreamingError, _BROKE_OFF),
    (boto.IncompleteReadError, _BROKE_OFF),
    (boto.HTTPClientError, _UNREACHABLE),
    (boto.ConnectionError, _UNREACHABLE),
    (boto.ParamValidationError, "correct the bucket in sink.path or source.path"),
    (boto.InvalidEndpointConfigurationError, "correct storage.endpoint_url"),
    (JSONDecodeError, "the credential_process of the profile printed no valid JSON; correct it"),
    (ValueError, "correct storage.endpoint_url (http://host:port)"),
)


def code_of(error: ClientError) -> str:
    return str(error.response.get("Error", {}).get("Code", ""))


def translate(error: Exception, action: str, url: str, endpoint: str) -> StorageError:
    """A StorageError that names the object, the endpoint, the cause and the next step."""
    if isinstance(error, ClientError):
        code = code_of(error)
        message = error.response.get("Error", {}).get("Message", "")
        next_step = NEXT_STEP.get(code) or _by_family(code)
        return StorageError(f"cannot {action} {url} at {endpoint}: {code}: {message} {next_step}{_region(error)}")
    next_step = next((step for kind, step in CAUSES if isinstance(error, kind)), "see boto3's message")
    return StorageError(f"cannot {action} {url} at {endpoint}: {error}: {next_step}")


def _by_family(code: str) -> str:
    if code.startswith("KMS."):
        return "the key of storage.kms_key_id cannot be used; check its state and its policy"
    return "the store failed, also after all tries; look at its health, then resume"


def _region(error: ClientError) -> str:
    region = error.response.get("ResponseMetadata", {}).get("HTTPHeaders", {}).get("x-amz-bucket-region")
    return f" (the bucket's region is {region})" if region else ""
