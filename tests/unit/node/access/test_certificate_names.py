"""Whom a certificate names, by its common name and by rules; and that nobody is somebody else by half a match."""

import pytest

from http_api.access.certificates import ClientCertificate
from milena.model.errors import StartupError
from node.access.certificate_names import CertificateNames, NamelessCertificateError
from node.config.sources import load_config

SPIFFE = r"URI:spiffe://example\.org/user/(.+)"


def user_of(rule: str | None, *names: str) -> str:
    found = ClientCertificate(digest=bytes(32), names=names, expires_ms=1)
    return CertificateNames(rule).user_of(found)


@pytest.mark.parametrize(
    ("rule", "names", "user"),
    [
        (None, ("CN:ann", "DNS:bob", "EMAIL:a@b"), "ann"),
        (None, ("CN:ann@example.org",), "ann@example.org"),
        (None, ("CN:ann", "CN:ann"), "ann"),
        (SPIFFE, ("CN:root", "URI:spiffe://example.org/user/ann"), "ann"),
        (r"EMAIL:(.*)@example\.org", ("EMAIL:ann@example.org", "EMAIL:ann@else.org"), "ann"),
        (r"(?:DNS|CN):([a-z]+)\.users", ("CN:ann.users", "DNS:ann.users"), "ann"),
        (r"DNS:((?:a|b)nn)", ("DNS:ann",), "ann"),
    ],
)
def test_a_certificate_names_a_user(rule, names, user):
    assert user_of(rule, *names) == user


@pytest.mark.parametrize(
    ("rule", "names"),
    [
        (None, ()),
        (None, ("DNS:ann", "EMAIL:ann", "URI:ann")),
        (None, ("CN:ann", "CN:root")),
        (None, ("CN:",)),
        (None, ("CN:ann smith",)),
        (None, ("CN:ann\n",)),
        (None, ("CN:oidc:ann",)),
        (None, ("CN:*",)),
        (None, ("CN:" + "x" * 256,)),
        (None, ("CN:\u0430nn",)),
        (None, ("CN:ann\0",)),
        (None, ("CN:\udcff",)),
        # The whole name, and one of the kind that the rule says.
        (SPIFFE, ("URI:spiffe://example.org/user/ann bob",)),
        (SPIFFE, ("URI:https://evil.example/?spiffe://example.org/user/root",)),
        (SPIFFE, ("URI:spiffe://exampleXorg/user/root",)),
        (SPIFFE, ("CN:URI:spiffe://example.org/user/root",)),
        (SPIFFE, ("DNS:spiffe://example.org/user/root",)),
        (SPIFFE, ("URI:spiffe://example.org/user/a", "URI:spiffe://example.org/user/b")),
        (r"EMAIL:([a-z]+)@example\.org", ("EMAIL:root@example.org.evil.com",)),
        (r"EMAIL:([a-z]+)@example\.org", ("EMAIL:x@root@example.org",)),
        (r"DNS:(ann)?.*", ("DNS:bob",)),
    ],
)
def test_a_certificate_that_names_nobody_is_nobodys(rule, names):
    with pytest.raises(NamelessCertificateError):
        user_of(rule, *names)


TLS = {"tls_cert_file": "c", "tls_key_file": "k"}


@pytest.mark.parametrize(
    ("options", "auth"),
    [
        ({}, "none"),
        ({"tls_client_auth": "none"}, "none"),
        ({"tls_client_ca_file": "a"}, "required"),
        ({"tls_client_ca_file": "a", "tls_client_auth": "none"}, "none"),
        ({"tls_client_ca_file": "a", "tls_client_auth": "optional"}, "optional"),
    ],
)
def test_an_authority_means_that_certificates_are_required_unless_it_is_said(options, auth):
    assert load_config(None, {}, {**TLS, **options}).client_auth == auth


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"tls_client_auth": "optional"}, "tls_client_auth = optional needs tls_client_ca_file"),
        ({"tls_client_auth": "required"}, "tls_client_auth = required needs tls_client_ca_file"),
        ({"tls_client_auth": "maybe"}, "allowed: none or optional or required"),
        ({"tls_principal_rule": "CN:(.*)"}, "tls_principal_rule needs tls_client_ca_file"),
        (
            {
                "tls_principal_rule": "CN:(.*)",
                "tls_client_ca_file": "a",
                "tls_client_auth": "none",
            },
            "tls_principal_rule needs",
        ),
        ({"tls_principal_rule": "CN:.*"}, "it has no group"),
        ({"tls_principal_rule": "CN:(.*"}, "no pattern of RE2"),
        ({"tls_principal_rule": r"CN:(.)\1"}, "no pattern of RE2"),
    ],
)
def test_settings_that_make_no_sense_are_refused(options, said):
    with pytest.raises(StartupError) as caught:
        load_config(None, {}, {**TLS, **options})
    assert said in caught.value.message
