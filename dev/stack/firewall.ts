import { spawnSync } from 'node:child_process';
import { tableName } from '../../agent/firewall/ruleset.ts';
import type { Ports } from './ports.ts';
import type { StackSettings } from './settings.ts';

/** Whether the agent publishes its rules to a packet filter, for which root has to start the stack. */
export const hasFirewall = ({ environment }: StackSettings) =>
  environment.FIREWALL === 'nftables' && process.getuid?.() === 0;

/** Removes the agent's table. It outlives the agent, which may be restarted, but not the stack. */
export function removeFirewall(settings: StackSettings, ports: Ports): void {
  if (!hasFirewall(settings)) return;
  const table = tableName({ POSTGRES_PORT: ports.DIRECT_PORT });
  spawnSync('nft', ['delete', 'table', ...table.split(' ')]);
}
