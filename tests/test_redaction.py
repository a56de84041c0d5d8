"""Redaction: what opens a door is not told, and the rest of a text stays as it is."""

import pytest

from crsbench.redaction import holds_secret, redacted

SECRETS = [
    "https://x.blob.core.windows.net/c/f.zip?sv=2021&se=2026-01-01&sig=AbC%2F9%3D&sp=r",
    "https://b.s3.amazonaws.com/f?X-Amz-Credential=AbC%2F9&X-Amz-Signature=AbC%2F9",
    "https://storage.googleapis.com/b/f?X-Goog-Signature=AbC%2F9",
    "https://b.s3.amazonaws.com/f?AWSAccessKeyId=AbC%2F9&Signature=AbC%2F9",
    "https://h/f?token=AbC%2F9",
    "https://h/f?a=1&amp;access_token=AbC%2F9",
    "https://ann:AbC%2F9@physionet.org/f",
]


@pytest.mark.parametrize("link", SECRETS)
def test_secrets_of_links_are_taken_out_wherever_they_stand(link):
    for text in (link, f"GET {link} failed", f"('{link}')", f'"{link}"', f"Max retries: {link})"):
        assert "AbC" not in redacted(text)
        assert "[redacted]" in redacted(text)
        assert redacted(redacted(text)) == redacted(text)
    assert holds_secret(link)


def test_headers_with_a_password_are_taken_out():
    assert "aHVzaA" not in redacted("{'Authorization': 'Basic aHVzaA=='}")


@pytest.mark.parametrize(
    "text",
    [
        "https://physionet.org/files/mimic-cxr-jpg/2.1.0/SHA256SUMS.txt",
        "https://h/f?page=3&size=10",
        "machine physionet.org login USER password PASSWORD",
        "data/isic2019: 3 of 7 images; ask ann@example.org",
    ],
)
def test_other_texts_stay_as_they_are(text):
    assert redacted(text) == text
    assert not holds_secret(text)
