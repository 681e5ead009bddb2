"""A guarded write of an object: its token stands in its metadata, and a conditional PUT compares and writes."""

from botocore.exceptions import ClientError

TOKEN = "rowlock-token"


class Stale(Exception):
    """A holder with a larger token has written."""


def write(s3, bucket, key, token, body):
    """Repeats until no one has written between the look and the PUT."""
    while True:
        try:
            found = s3.head_object(Bucket=bucket, Key=key)
        except ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
                raise
            condition = {"IfNoneMatch": "*"}
        else:
            seen = int(found["Metadata"].get(TOKEN, "0"))
            if token < seen:
                raise Stale(f"stale token {token}: a holder with token {seen} has written {key}")
            condition = {"IfMatch": found["ETag"]}
        try:
            s3.put_object(Bucket=bucket, Key=key, Body=body, Metadata={TOKEN: str(token)}, **condition)
            return
        except ClientError as error:
            # 412: another write came first. 409: one is under way.
            if error.response["ResponseMetadata"]["HTTPStatusCode"] not in (409, 412):
                raise
