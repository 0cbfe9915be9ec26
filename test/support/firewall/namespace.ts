import { execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { mkdtempSync, rmSync, writeFileSync } from 'node:fs';
import { tmpdir } from 'node:os';
import { delimiter, join } from 'node:path';
import type { Order } from './namespace-sockets.ts';

const NFT = '/usr/sbin/nft';
/** A user without any capability. */
const NOBODY = '65534';

/** A network of its own in the kernel, in which `nft` of this process acts while it exists. */
export interface Namespace {
  /** Connects once. @returns `in`, or the system's error code */
  connect: (from: string, port: number) => Promise<string>;
  nft: (...args: string[]) => string;
  /** Runs `action` while `nft` has no capability. */
  powerless: <T>(action: () => Promise<T>) => Promise<T>;
  remove: () => void;
}

/**
 * @param addresses of its loopback device, besides 127.0.0.0/8 and ::1
 * @param ports that accept connections
 */
export async function makeNamespace(addresses: string[], ports: number[]): Promise<Namespace> {
  const name = `branchgate-test-${process.pid}`;
  const ip = (...args: string[]) => execFileSync('ip', args, { stdio: 'pipe' });
  const within = ['netns', 'exec', name];
  const folder = mkdtempSync(join(tmpdir(), 'branchgate-nft-'));
  const path = process.env.PATH;
  const use = (command: string) =>
    writeFileSync(join(folder, 'nft'), `#!/bin/sh\nexec ${command} ${NFT} "$@"\n`, { mode: 0o755 });
  ip('netns', 'add', name);
  const sockets = spawn(
    'ip',
    [...within, process.execPath, join(import.meta.dirname, 'namespace-sockets.ts')],
    { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] },
  );
  const order = async (what: Order) => {
    const reply = once(sockets, 'message');
    sockets.send(what);
    return String((await reply)[0]);
  };
  ip('-n', name, 'link', 'set', 'lo', 'up');
  for (const address of addresses) ip('-n', name, 'address', 'add', address, 'dev', 'lo', 'nodad');
  use(`ip ${within.join(' ')}`);
  process.env.PATH = `${folder}${delimiter}${path}`;
  await order({ listen: ports });
  return {
    connect: (from, port) => order({ from, to: from.includes(':') ? '::1' : '127.0.0.1', port }),
    nft: (...args) => execFileSync('ip', [...within, NFT, ...args], { encoding: 'utf8' }),
    async powerless(action) {
      use(`setpriv --reuid ${NOBODY} --regid ${NOBODY} --clear-groups`);
      try {
        return await action();
      } finally {
        use(`ip ${within.join(' ')}`);
      }
    },
    remove() {
      process.env.PATH = path;
      sockets.kill('SIGKILL');
      ip('netns', 'delete', name);
      rmSync(folder, { recursive: true });
    },
  };
}
