"""Whose calls this server takes, and what each may do: keys, tokens of an issuer, and how much of everything.

token ─▶ callers ─┬─ KeyRing (kb_contracts.access)   named keys, those of the settings
                  └─ oauth                           tokens of KB_OAUTH_ISSUER
            └─▶ Grant ─┬─ access    travels to the engine, which enforces it in its queries
                       ├─ toolsets  decided here: which tools are there
                       └─ quotas    counted here: `quotas`
"""
