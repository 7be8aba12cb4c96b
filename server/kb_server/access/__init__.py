"""Access control of this server: authentication by key or issuer token, rights and quotas.

token ─▶ callers ─┬─ KeyRing (kb_contracts.access)   named keys, and the key of the settings
                  └─ kb_server.oauth                 tokens of KB_OAUTH_ISSUER, an optional part
         └─▶ Grant ─┬─ access    sent to the engine, which enforces it in its queries
                    ├─ toolsets  decided here: the visible tools
                    └─ quotas    counted here: `quotas`
"""
