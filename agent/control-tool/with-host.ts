import { closeHost, type Host, openHost } from '../host/host.ts';
import { type AgentSettings, readSettings } from '../process/settings.ts';
import { UsageError } from './exit-codes.ts';

/** The settings in the environment. @throws UsageError that names the invalid variables */
export function readShellSettings(): AgentSettings {
  try {
    return readSettings(process.env);
  } catch (error) {
    throw new UsageError(`${error instanceof Error ? error.message : error}: correct the environment`);
  }
}

/** Runs `action` on this host; the agent may run at the same time. */
export async function withHost<T>(action: (host: Host) => Promise<T>): Promise<T> {
  const host = await openHost(readShellSettings());
  try {
    return await action(host);
  } finally {
    await closeHost(host);
  }
}
