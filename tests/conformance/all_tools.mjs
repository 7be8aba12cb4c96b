// A note and a file through every tool of the toolset kb, by the official TypeScript client, which validates each
// result against the tool's output schema; the outcome is printed as JSON.
//
//   node all_tools.mjs URL [KEY]

import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client';

const [url, key] = process.argv.slice(2);
const headers = key ? { Authorization: `Bearer ${key}` } : {};
const client = new Client({ name: 'all-tools', version: '1.0.0' });
await client.connect(new StreamableHTTPClientTransport(new URL(url), { requestInit: { headers } }));
const called = new Set();

async function call(name, args) {
  const result = await client.callTool({ name, arguments: args });
  called.add(name);
  if (result.isError || !result.structuredContent) {
    throw new Error(`${name}: ${JSON.stringify(result)}`);
  }
  return result.structuredContent;
}

try {
  const { tools } = await client.listTools();
  const content = Buffer.from('# Granite\n\nGranite is an igneous rock.\n');
  const added = await call('kb_addnote', { text: 'Bees keep warm by shivering', wait_seconds: 30 });
  const found = await call('kb_search', { query: 'how do bees keep warm', explain: true, neighbors: 1 });
  const read = await call('kb_get', { document_id: added.document_id });
  const changed = await call('kb_update_note', { document_id: added.document_id, text: 'In a ball' });
  const { upload_id } = await call('kb_upload_start', { filename: 'g.md', total_size: content.length });
  await call('kb_upload_chunk', { upload_id, chunk_index: 0, data: content.toString('base64') });
  const finished = await call('kb_upload_finish', { upload_id, wait_seconds: 30 });
  const jobs = await call('kb_jobs', {});
  const known = { document_id: added.document_id, job_id: added.job_id, query: 'bees' };
  for (const { name, inputSchema } of tools.filter((tool) => !called.has(tool.name))) {
    await call(name, Object.fromEntries((inputSchema.required ?? []).map((each) => [each, known[each]])));
  }
  console.log(
    JSON.stringify({
      nulls: [added.error, read.source_path, changed.format, jobs.jobs[0].error],
      found: found.results[0].document_id === added.document_id,
      followed: jobs.jobs[0].id === finished.job_id,
    }),
  );
} finally {
  await client.close();
}
