import { appendFileSync, closeSync, existsSync, fsyncSync, openSync, readFileSync } from 'node:fs';
import { CommandError } from '../cli/exit-codes.ts';
import { createClient } from '../client/client.ts';
import { dataOf } from '../client/response-error.ts';
import { DeploymentFolder } from './deployment.ts';
import { SecretsFile } from './secrets-file.ts';

const EVENTS = '/platform/v1/audit-events';

/** The id of the last event of a copy; null without one. @throws CommandError for a file that is none */
function lastIn(file: string): string | null {
  if (!existsSync(file)) return null;
  const text = readFileSync(file, 'utf8');
  if (text === '') return null;
  try {
    if (!text.endsWith('\n')) throw new Error('its last line is cut off');
    return String(JSON.parse(text.trimEnd().split('\n').at(-1) ?? '').id);
  } catch (error) {
    throw new CommandError(
      'conflict',
      `${file} is no copy of audit events: ${(error as Error).message}. Remove its last line, or give another file.`,
    );
  }
}

/**
 * Appends the audit events that a file lacks, one JSON object a line, and confirms them to the gateway when they are on
 * the disk. An interrupted run is continued by the next one.
 * @returns the number of events
 */
export async function exportAudit(path: string, file: string): Promise<number> {
  const deployment = new DeploymentFolder(path).read();
  if (!deployment)
    throw new CommandError('usage', `${path} has no record of a deployment. Run \`npm run deploy\` first.`);
  const url = `https://${deployment.address}`;
  const copy = new SecretsFile(deployment.secrets_file, url);
  const { PLATFORM_SECRET = process.env.BRANCHGATE_PLATFORM_SECRET } = copy.read();
  if (!PLATFORM_SECRET) throw copy.missing('PLATFORM_SECRET');
  const { api } = createClient({ url, token: PLATFORM_SECRET });
  let last = lastIn(file);
  let count = 0;
  // With a new file, events that an earlier copy has are in this one again, as far as they are still there.
  for (;;) {
    const query = last === null ? {} : { after: last };
    const { audit_events: events } = await dataOf(api.GET(EVENTS, { params: { query } }));
    if (events.length === 0) return count;
    const target = openSync(file, 'a', 0o600);
    appendFileSync(target, events.map((event) => `${JSON.stringify(event)}\n`).join(''));
    fsyncSync(target);
    closeSync(target);
    count += events.length;
    last = events.at(-1)?.id ?? last;
    if (last) await dataOf(api.PUT(`${EVENTS}/exported`, { body: { event_id: last } }));
  }
}
