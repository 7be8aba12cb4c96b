// The sign-in of the official TypeScript client, of both generations: a client without a token reads, writes, and
// calls a tool that needs a wider scope, to which the user consents or not. The requests are printed as JSON.
//
//   node sign_in.mjs sdk|client URL agrees|refuses

const [generation, url, decision] = process.argv.slice(2);
const { Client, StreamableHTTPClientTransport } =
  generation === 'client'
    ? await import('@modelcontextprotocol/client')
    : {
        ...(await import('@modelcontextprotocol/sdk/client/index.js')),
        ...(await import('@modelcontextprotocol/sdk/client/streamableHttp.js')),
      };
const CALLBACK = 'http://127.0.0.1:1/callback';
const requests = [];
const kept = { scopes: [] };

// A browser with cookies: follows redirects up to the client's callback.
async function browse(first) {
  const cookies = new Map();
  const refuses = decision === 'refuses' && first.searchParams.get('scope').includes('kb:delete');
  let place = first;
  while (!place.href.startsWith(CALLBACK)) {
    const cookie = [...cookies].map((pair) => pair.join('=')).join('; ');
    const person = refuses ? { 'X-Person': 'refuses' } : {};
    const response = await fetch(place, { redirect: 'manual', headers: { cookie, ...person } });
    for (const line of response.headers.getSetCookie()) {
      const [name, value] = line.split(';')[0].split(/=(.*)/s);
      cookies.set(name, value);
    }
    if (!response.headers.has('location')) {
      throw new Error(`${place}: ${response.status} ${await response.text()}`);
    }
    place = new URL(response.headers.get('location'), place);
  }
  kept.answer = place.searchParams;
}

const provider = {
  redirectUrl: CALLBACK,
  clientMetadata: {
    client_name: 'a test',
    redirect_uris: [CALLBACK],
    grant_types: ['authorization_code'],
    response_types: ['code'],
    token_endpoint_auth_method: 'none',
  },
  clientInformation: () => kept.client,
  saveClientInformation: (client) => (kept.client = client),
  tokens: () => kept.tokens,
  saveTokens: (tokens) => (kept.tokens = tokens),
  saveCodeVerifier: (verifier) => (kept.verifier = verifier),
  codeVerifier: () => kept.verifier,
  saveDiscoveryState: (state) => (kept.discovery = state),
  discoveryState: () => kept.discovery,
  async redirectToAuthorization(place) {
    kept.scopes.push(place.searchParams.get('scope'));
    await browse(place);
  },
};

async function logged(input, init) {
  const response = await fetch(input, init);
  const challenge = response.headers.get('www-authenticate');
  const place = new URL(input instanceof Request ? input.url : input);
  requests.push([init?.method ?? 'GET', place.pathname, response.status, challenge ?? '']);
  return response;
}

// Do some work; if that requires a sign-in, complete the sign-in and do it again, once.
async function signedIn(work, transport) {
  kept.answer = undefined;
  try {
    return await work();
  } catch (error) {
    if (!kept.answer?.has('code')) return { failed: kept.answer?.get('error') ?? String(error) };
    await finish();
    return await work();
  }
}

const finish = () => transport.finishAuth(kept.answer.get('code'), kept.answer.get('iss'));

let transport;
let client;
async function connect() {
  transport = new StreamableHTTPClientTransport(new URL(url), { authProvider: provider, fetch: logged });
  client = new Client({ name: 'sign-in', version: '1.0.0' });
  await client.connect(transport);
}

await connect().catch(async () => {
  await finish();
  await connect();
});
const call = (name, args) => client.callTool({ name, arguments: args });
const added = await call('kb_addnote', { text: `Granite is an igneous rock: ${url}`, wait_seconds: 30 });
const removal = { document_id: added.structuredContent.document_id };
const removed = await signedIn(() => call('kb_delete', removal), transport);
const again = decision === 'refuses' ? await signedIn(() => call('kb_delete', removal), transport) : {};
const read = await call('kb_status', {});
await client.close();
console.log(
  JSON.stringify({
    scopes: kept.scopes,
    granted: kept.tokens.scope,
    added: !added.isError,
    removed: removed.failed ?? !removed.isError,
    again: again.failed,
    read: !read.isError,
    requests,
  }),
);
