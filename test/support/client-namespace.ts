import { type ChildProcess, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { join } from 'node:path';

/** Addresses for tests of networks (RFC 2544), a pair for each process. */
const PREFIX = `198.18.${20 + (process.pid % 200)}`;

/** A network of its own in the kernel, whose programs reach ports of this machine from an address of their own. */
export interface ClientNamespace {
  /** The address from which its programs connect. */
  address: string;
  /** The address of this machine that they reach. */
  host: string;
  /** The loopback of the namespace passes connections on: from each of these ports to the one of this machine. */
  relay: (ports: Record<number, number>) => Promise<void>;
  /** Runs a program in it. */
  run: (words: string[], options: { cwd: string; env: NodeJS.ProcessEnv }) => Promise<Ended>;
  remove: () => void;
}

interface Ended {
  code: number | null;
  stdout: string;
  stderr: string;
}

/** Takes root. */
export function makeClientNamespace(): ClientNamespace {
  const name = `branchgate-client-${process.pid}`;
  const device = `bg${process.pid}`;
  const host = `${PREFIX}.1`;
  const address = `${PREFIX}.2`;
  const ip = (...args: string[]) => execFileSync('ip', args, { stdio: 'pipe' });
  const relays: ChildProcess[] = [];
  ip('netns', 'add', name);
  ip('link', 'add', device, 'type', 'veth', 'peer', 'name', 'eth0', 'netns', name);
  ip('address', 'add', `${host}/30`, 'dev', device);
  ip('link', 'set', device, 'up');
  ip('-n', name, 'address', 'add', `${address}/30`, 'dev', 'eth0');
  for (const own of ['eth0', 'lo']) ip('-n', name, 'link', 'set', own, 'up');
  const within = ['netns', 'exec', name];
  return {
    address,
    host,
    async relay(ports) {
      const pairs = Object.entries(ports).map((pair) => pair.join('='));
      const relay = spawn(
        'ip',
        [...within, process.execPath, join(import.meta.dirname, 'namespace-relay.ts'), host, ...pairs],
        { stdio: ['ignore', 'inherit', 'inherit', 'ipc'] },
      );
      relays.push(relay);
      await once(relay, 'message');
    },
    async run(words, options) {
      const child = spawn('ip', [...within, ...words], { ...options, stdio: ['ignore', 'pipe', 'pipe'] });
      const texts = { stdout: '', stderr: '' };
      for (const stream of ['stdout', 'stderr'] as const)
        child[stream].setEncoding('utf8').on('data', (text: string) => {
          texts[stream] += text;
        });
      const [code] = await once(child, 'close');
      return { code, ...texts };
    },
    remove() {
      for (const relay of relays) relay.kill('SIGKILL');
      // The namespace takes its devices along.
      ip('netns', 'delete', name);
    },
  };
}
