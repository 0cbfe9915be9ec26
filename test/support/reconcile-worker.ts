import { callHost } from '../../edge/host-link/call-host.ts';
import type { Env } from '../../edge/settings.ts';

/** Stands for the reconciler: asks one thing of the host, over the very object that runs it. */
export async function reconcileHost(env: Env, hostId: string): Promise<void> {
  const outcome = await callHost(env, hostId, 'host.describe', {});
  if (!outcome.ok) throw new Error(outcome.failure.code);
}
