// The authorization server oidc-provider, for unregistered clients and a user who consents to every scope.
// Its settings come as JSON on stdin: its address, its signing keys, and the resource.
// It ends when stdin is closed.

import { createServer } from "node:http";
import { createInterface } from "node:readline";
import Provider from "oidc-provider";

const lines = createInterface({ input: process.stdin });
const settings = JSON.parse((await lines[Symbol.asyncIterator]().next()).value);

const provider = new Provider(settings.issuer, {
  jwks: { keys: settings.keys },
  cookies: { keys: ["only for a test"] },
  scopes: ["openid", "offline_access", ...settings.scopes],
  pkce: { required: () => true },
  issueRefreshToken: async (_context, client) => client.grantTypeAllowed("refresh_token"),
  findAccount: async (_context, id) => ({ accountId: id, claims: async () => ({ sub: id }) }),
  // Clients register the scopes of their first sign-in. Limited to these, no client could request a wider one.
  extraClientMetadata: {
    properties: ["scopes_at_registration"],
    validator: (_context, _key, _value, metadata) => {
      delete metadata.scope;
    },
  },
  interactions: { url: (_context, interaction) => `/interaction/${interaction.uid}` },
  features: {
    devInteractions: { enabled: false },
    registration: { enabled: true },
    revocation: { enabled: true },
    resourceIndicators: {
      enabled: true,
      useGrantedResource: () => true,
      getResourceServerInfo: (_context, resource) => {
        if (resource !== settings.resource) throw new Error(`an unknown resource: ${resource}`);
        return {
          audience: resource,
          scope: settings.scopes.join(" "),
          accessTokenTTL: settings.seconds,
          accessTokenFormat: "jwt",
          jwt: { sign: { alg: "RS256" } },
        };
      },
    },
  },
});

// The user's clicks: log in as alice and consent, or refuse with the header `X-Person: refuses`.
async function agree(request, response) {
  const { prompt, params, session } = await provider.interactionDetails(request, response);
  if (prompt.name === "login") {
    await provider.interactionFinished(request, response, { login: { accountId: "alice" } });
    return;
  }
  if (request.headers['x-person'] === 'refuses') {
    const refused = { error: 'access_denied', error_description: 'The person refuses.' };
    await provider.interactionFinished(request, response, refused);
    return;
  }
  const grant = new provider.Grant({ accountId: session.accountId, clientId: params.client_id });
  grant.addOIDCScope(params.scope ?? "");
  grant.addResourceScope(settings.resource, params.scope ?? "");
  await provider.interactionFinished(request, response, { consent: { grantId: await grant.save() } });
}

const answer = provider.callback();
const server = createServer((request, response) => {
  if (request.url.startsWith("/interaction/")) {
    agree(request, response).catch((error) => {
      response.statusCode = 500;
      response.end(String(error));
    });
  } else {
    answer(request, response);
  }
});
server.listen(new URL(settings.issuer).port, "127.0.0.1", () => console.log("ready"));
lines.on("close", () => process.exit(0));
