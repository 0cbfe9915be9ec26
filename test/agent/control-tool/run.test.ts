import { spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtemp, rm } from 'node:fs/promises';
import { tmpdir } from 'node:os';
import { join } from 'node:path';
import { text } from 'node:stream/consumers';
import { exportJWK } from 'jose';
import { expect, test } from 'vitest';
import { EXIT_CODES } from '../../../agent/control-tool/exit-codes.ts';
import { PrivateKey, writeIdentity } from '../../../agent/link/identity.ts';
import { makeHostKey } from '../../support/host/host-key.ts';

const TOOL = join(import.meta.dirname, '../../../agent/main.ts');
/** Makes one of the loops reject: the server of the metrics. */
const DEFECT =
  "import { Server } from 'node:net'; Server.prototype.listen = () => { throw new Error('a defect'); };";

test('an agent with a loop that fails ends with the reason, without servers and without a gateway', async () => {
  const stateDir = await mkdtemp(join(tmpdir(), 'branchgate-run-'));
  try {
    const { privateKey } = await makeHostKey();
    await writeIdentity(stateDir, {
      host_id: 'a4b5e2a4-3a8f-4f3e-9d6c-0a1b2c3d4e5f',
      private_key: PrivateKey.parse(await exportJWK(privateKey)),
    });
    const agent = spawn(
      process.execPath,
      ['--import', `data:text/javascript,${encodeURIComponent(DEFECT)}`, TOOL, 'run'],
      {
        env: {
          ...process.env,
          STATE_DIR: stateDir,
          POSTGRES_SOCKET_DIR: stateDir,
          POOLER_SOCKET_DIR: stateDir,
          PGDATA_DIR: stateDir,
          POOLER_LOG: join(stateDir, 'pooler.log'),
          // Nothing listens on port 1.
          GATEWAY_URL: 'http://127.0.0.1:1',
          METRICS_PORT: '1',
        },
      },
    );
    const [said, logged, [code]] = await Promise.all([
      text(agent.stderr),
      text(agent.stdout),
      once(agent, 'exit'),
    ]);
    expect(said).toBe('branchgate-agent: the loop "metrics" has failed: a defect\n');
    expect(code).toBe(EXIT_CODES.failed.code);
    expect(logged).toContain('"event":"agent.stopped"');
  } finally {
    await rm(stateDir, { recursive: true });
  }
});
