"""Every failure names the object, the endpoint and the next step; the codes that no test server can be made to send."""

from __future__ import annotations

import json

import pytest
from botocore import exceptions as boto
from botocore.exceptions import ClientError

from configs.errors import DraftfleetError, StorageError
from pipeline.store.s3_errors import translate

URL, ENDPOINT = "s3://bucket/runs/demo-1/a", "https://s3.eu-central-1.amazonaws.com"


def answer(code: str, headers: dict[str, str] | None = None) -> ClientError:
    return ClientError(
        {"Error": {"Code": code, "Message": "said the store."}, "ResponseMetadata": {"HTTPHeaders": headers or {}}},  # type: ignore[typeddict-item]
        "PutObject",
    )


@pytest.mark.parametrize(
    ("error", "next_step"),
    [
        (answer("NoSuchBucket"), "create it, or correct sink.path"),
        (answer("InvalidAccessKeyId"), "check AWS_ACCESS_KEY_ID"),
        (answer("SignatureDoesNotMatch"), "check AWS_SECRET_ACCESS_KEY"),
        (answer("AccessDenied"), "docs/storage.md"),
        (answer("403"), "docs/storage.md"),
        (answer("ExpiredToken"), "have expired; renew them"),
        (answer("InvalidToken"), "AWS_SESSION_TOKEN"),
        (answer("RequestTimeTooSkewed"), "clock"),
        (answer("PermanentRedirect"), "set storage.region"),
        (answer("KMS.DisabledException"), "storage.kms_key_id is disabled"),
        (answer("KMS.InvalidStateException"), "storage.kms_key_id cannot be used"),
        (answer("SlowDown"), "storage.max_attempts"),
        (answer("NotImplemented"), "lacks a function"),
        (answer("InternalError"), "look at its health"),
        (boto.NoCredentialsError(), "set AWS_ACCESS_KEY_ID"),
        (boto.CredentialRetrievalError(provider="custom-process", error_msg="exit 1"), "no usable credentials"),
        (boto.ProfileNotFound(profile="nobody"), "correct storage.profile"),
        (boto.UnauthorizedSSOTokenError(), "log in again"),
        (boto.EndpointConnectionError(endpoint_url=ENDPOINT), "does not answer"),
        (boto.ConnectTimeoutError(endpoint_url=ENDPOINT), "does not answer"),
        (boto.ReadTimeoutError(endpoint_url=ENDPOINT), "does not answer"),
        (boto.SSLError(endpoint_url=ENDPOINT, error="self-signed"), "AWS_CA_BUNDLE"),
        (boto.ProxyConnectionError(proxy_url="http://proxy:3128"), "HTTPS_PROXY"),
        (boto.IncompleteReadError(actual_bytes=1, expected_bytes=2), "broke off"),
        (boto.ParamValidationError(report="Invalid bucket name"), "correct the bucket"),
        (ValueError("Invalid endpoint: localhost:1"), "correct storage.endpoint_url"),
        (json.JSONDecodeError("Expecting value", "", 0), "credential_process"),
    ],
    ids=str,
)
def test_it_says_what_to_do(error: Exception, next_step: str) -> None:
    told = translate(error, "write", URL, ENDPOINT)
    assert isinstance(told, StorageError)
    assert isinstance(told, DraftfleetError)
    assert next_step in str(told)
    assert f"cannot write {URL} at {ENDPOINT}: " in str(told)


def test_the_right_region_is_named_where_the_store_tells() -> None:
    error = answer("PermanentRedirect", {"x-amz-bucket-region": "eu-west-1"})
    assert "(the bucket's region is eu-west-1)" in str(translate(error, "write", URL, ENDPOINT))


def test_the_stores_own_words_are_kept() -> None:
    assert "QuirkyError: said the store." in str(translate(answer("QuirkyError"), "read", URL, ENDPOINT))
