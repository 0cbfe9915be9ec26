import { execFileSync } from 'node:child_process';

const run = (command: string, ...args: string[]) =>
  execFileSync(command, args, { stdio: ['ignore', 'pipe', 'ignore'], encoding: 'utf8' });

/** Settings by which the stack's agent publishes its rules to an nftables set as well. */
export const WITH_FIREWALL = { FIREWALL: 'nftables' };

/**
 * Why no packet filter can be used here; null when it can. Installs the Debian package where it is missing.
 */
export function firewallHindrance(): string | null {
  if (process.getuid?.() !== 0) return 'not root';
  try {
    run('nft', '--version');
  } catch {
    try {
      run('apt-get', 'install', '--yes', '--quiet', 'nftables');
    } catch {
      return 'no nftables';
    }
  }
  try {
    run('nft', 'list', 'tables');
    return null;
  } catch {
    return 'no netfilter';
  }
}

/** The tables of branchgate that the kernel has now, `family name`. */
export const firewallTables = (): string[] =>
  run('nft', 'list', 'tables')
    .split('\n')
    .map((line) => line.replace(/^table /, '').trim())
    .filter((table) => table.includes('branchgate'));

/** Removes the tables that a stack has made, whatever became of it. */
export function removeTables(others: readonly string[]): void {
  for (const table of firewallTables().filter((name) => !others.includes(name))) {
    run('nft', 'delete', 'table', ...table.split(' '));
  }
}
