// One conversation of the official TypeScript client with a server; the outcome is printed as JSON.
//
//   node round_trip.mjs TARGET MODE PLAN
//
// TARGET is JSON: {url} or {command, args, env}. MODE is legacy, auto or a version to pin. PLAN is JSON:
// `call` must succeed, `refused` must return a result with isError, `progress` (may be null)
// reports progress; each is {name, arguments}.

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';
import { StdioClientTransport } from '@modelcontextprotocol/client/stdio';

const [target, mode, plan] = [process.argv[2], process.argv[3], process.argv[4]].map((value, place) =>
  place === 1 ? value : JSON.parse(value),
);

const client = new Client(
  { name: 'round-trip', version: '1.0.0' },
  { versionNegotiation: { mode: ['legacy', 'auto'].includes(mode) ? mode : { pin: mode } } },
);
const transport = target.url
  ? new StreamableHTTPClientTransport(new URL(target.url))
  : new StdioClientTransport({ ...target, stderr: 'ignore' });
await client.connect(transport);
try {
  const listed = await client.listTools();
  const called = await client.callTool(plan.call);
  const refused = await client.callTool(plan.refused);
  const progress = [];
  if (plan.progress) {
    await client.callTool(plan.progress, { onprogress: (step) => progress.push(step.progress) });
  }
  const unknown = await client.callTool({ name: 'no_such_tool', arguments: {} }).then(
    () => null,
    (error) => error.code,
  );
  console.log(
    JSON.stringify({
      version: client.getNegotiatedProtocolVersion(),
      tools: listed.tools.length,
      called: called.isError ? 'error' : typeof called.content[0]?.text,
      refused: refused.isError ? typeof refused.content[0]?.text : 'no error',
      progress,
      unknown,
    }),
  );
} finally {
  await client.close();
}
