"""Access tokens of an OAuth authorization server, instead of keys.

oauth_settings  the issuer, the audience, the scopes     tokens  checks a token     issuer  fetches its keys
"""

from __future__ import annotations

from kb_server.oauth.oauth_settings import OAuthSettings
from kb_server.parts import Part

PART = Part("oauth", OAuthSettings, issuer="kb_server.oauth.tokens:issuer_of")
