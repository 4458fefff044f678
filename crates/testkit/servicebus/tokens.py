"""Access rights of the double: shared access signatures and tokens that it issues itself."""

import base64
import hashlib
import hmac
import json
import time
import urllib.parse

RIGHTS = frozenset(("Manage", "Send", "Listen"))


class Refused(Exception):
    """A token that is not accepted, in the words of Service Bus."""


class Keys:
    """Keys by name, and the clients that may log in with Entra."""

    def __init__(self, keys, clients, token_s):
        # name -> (secret, rights)
        self.keys = {name: (secret, frozenset(rights)) for name, secret, rights in keys}
        # id -> (secret, rights)
        self.clients = {name: (secret, frozenset(rights)) for name, secret, rights in clients}
        self.token_s = token_s

    def rights(self, token):
        """Returns the scope, the rights and the expiry of a token."""
        kind, _, rest = token.partition(" ")
        if kind == "SharedAccessSignature":
            return self._signature(dict(urllib.parse.parse_qsl(rest)), rest)
        return self._issued(token)

    def _signature(self, fields, text):
        if not {"sr", "sig", "se", "skn"} <= fields.keys():
            raise Refused("MalformedToken: The token is malformed.")
        if fields["skn"] not in self.keys:
            raise Refused("InvalidSignature: The token has an invalid signature.")
        secret, rights = self.keys[fields["skn"]]
        scope = next(part[3:] for part in text.split("&") if part.startswith("sr="))
        signed = hmac.new(secret.encode(), f"{scope}\n{fields['se']}".encode(), hashlib.sha256)
        if not hmac.compare_digest(base64.b64encode(signed.digest()).decode(), fields["sig"]):
            raise Refused("InvalidSignature: The token has an invalid signature.")
        return fields["sr"], rights, self._fresh(float(fields["se"]))

    def _issued(self, token):
        try:
            _, payload, signature = token.split(".")
            expected = self._sign(payload)
            claims = json.loads(base64.urlsafe_b64decode(payload + "=="))
        except ValueError:
            raise Refused("MalformedToken: The token is malformed.") from None
        if not hmac.compare_digest(signature, expected):
            raise Refused("InvalidSignature: The token has an invalid signature.")
        if claims["aud"] != "https://servicebus.azure.net":
            raise Refused("InvalidAudience: The token has an invalid audience.")
        return "", frozenset(claims["rights"]), self._fresh(claims["exp"])

    def _fresh(self, expiry):
        if expiry <= time.time():
            raise Refused("ExpiredToken: The token is expired.")
        return expiry

    def _sign(self, payload):
        digest = hmac.new(b"the double", payload.encode(), hashlib.sha256).digest()
        return base64.urlsafe_b64encode(digest).decode().rstrip("=")

    def issue(self, form):
        """Answers a token request as Entra does. Returns a status and a JSON object."""

        def refuse(text):
            return 401, {"error": "invalid_client", "error_description": text}

        if form.get("client_id") not in self.clients:
            return refuse("AADSTS700016: Application with this identifier was not found in the directory.")
        secret, rights = self.clients[form["client_id"]]
        assertion = "urn:ietf:params:oauth:client-assertion-type:jwt-bearer"
        if form.get("client_secret", form.get("client_assertion")) != secret:
            return refuse("AADSTS7000215: Invalid client secret provided.")
        if "client_assertion" in form and form.get("client_assertion_type") != assertion:
            return refuse("AADSTS50027: JWT token is invalid or malformed.")
        if form.get("scope") != "https://servicebus.azure.net/.default":
            return 400, {"error": "invalid_scope", "error_description": "AADSTS70011: The scope is not valid."}
        claims = {
            "aud": "https://servicebus.azure.net",
            "exp": time.time() + self.token_s,
            "rights": sorted(rights),
        }
        payload = base64.urlsafe_b64encode(json.dumps(claims).encode()).decode().rstrip("=")
        token = f"eyJhbGciOiJIUzI1NiJ9.{payload}.{self._sign(payload)}"
        return 200, {"token_type": "Bearer", "expires_in": int(self.token_s), "access_token": token}
