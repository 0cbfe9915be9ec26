import { setTimeout as sleep } from 'node:timers/promises';
import type { Attack } from '../attack.ts';

const CLIENTS = 20;
const LARGE = "select repeat('x', 1000000) as text from generate_series(1, 10)";

/** Replies of 10 MB over HTTP, as many at a time as the host runs for a tenant, and more clients that wait for them. */
export const largeReplies: Attack = {
  row: '3.2',
  login: 'read_only',
  branches: 3,
  run: async ({ api, branchTargets, repeat, count, goesOn }) => {
    const read = async (n: number) => {
      const { user, password, database } = branchTargets[n % branchTargets.length]?.pooled ?? {};
      const response = await fetch(`${api.url}/sql`, {
        method: 'POST',
        headers: { 'Neon-Connection-String': `postgresql://${user}:${password}@host/${database}` },
        body: JSON.stringify({ query: LARGE, params: [] }),
        signal: AbortSignal.timeout(30_000),
      });
      const { code } = JSON.parse(await response.text()) as { code?: string };
      count(response.status === 200 ? 'replies' : `refused: ${code}`);
    };
    const all = Array.from({ length: CLIENTS }, (_, n) => repeat(() => read(n)));
    const over = async () => {
      while (goesOn()) await sleep(50);
    };
    await Promise.race([Promise.all(all), over()]);
  },
  boundsLatency: true,
  revocation: 'rotation',
  least: { replies: 1 },
};
