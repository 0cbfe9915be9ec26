import { execFile, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import { cpSync, existsSync, mkdirSync, mkdtempSync, readFileSync, writeFileSync } from 'node:fs';
import { join } from 'node:path';
import { promisify } from 'node:util';
import { afterAll, describe, expect, test } from 'vitest';
import { ROOT } from '../../dev/build/repository.ts';
import { install } from '../support/debian.ts';
import { canBoot, childrenOf, installDebian } from '../support/debian-system.ts';
import { eventually } from '../support/eventually.ts';
import { IS_NIGHTLY } from '../support/nightly.ts';

const BUILT_WITHIN_MS = 3_600_000;
const TRIED_WITHIN_MS = 600_000;
const READY = 'branchgate is ready: http://127.0.0.1:8787';
/** Of a container's network, as clients outside of it see it. */
const OUTSIDE = '10.98.76.54';
const AUTHORITIES = 'etc/ssl/certs/ca-certificates.crt';

const read = (path: string) => readFileSync(join(ROOT, path), 'utf8');
const PAGE = read('docs/trying.md');

test('each published port is one of the loopback, in all texts', () => {
  for (const text of [PAGE, read('compose.yaml')]) {
    const published = [...text.matchAll(/(?:^ +(?:- ")?|-p )([\d.]+:\d+:\d+)\b/gm)].map(([, port]) => port);
    expect(published).toEqual(['8787:8787', '5432:5432', '6432:6432'].map((ports) => `127.0.0.1:${ports}`));
  }
});

/**
 * Starts a container as an engine does: a layer of its own over the image, the volume, and processes and a network of its own.
 * No engine runs on every machine that runs the tests.
 */
const CONTAINER = `set -e
image=$1 layer=$2 volume=$3; shift 3
mount --make-rprivate /
mkdir -p "$layer/upper" "$layer/work" "$layer/root"
mount -t overlay overlay -o "lowerdir=$image,upperdir=$layer/upper,workdir=$layer/work" "$layer/root"
cd "$layer/root"
mount -t proc proc proc
mount --rbind /dev dev
mount -t tmpfs shm dev/shm
mkdir -p data
mount --bind "$volume" data
ip link set lo up
ip address add ${OUTSIDE}/32 dev lo
exec chroot . env -i "$@"`;

const isPossible = () =>
  IS_NIGHTLY &&
  canBoot() &&
  install('buildah') &&
  readFileSync('/proc/filesystems', 'utf8').includes('overlay');

describe.runIf(isPossible())('the image', () => {
  // In memory it would take what the other tests need.
  const folder = mkdtempSync('/var/tmp/branchgate-image-');
  const volume = join(folder, 'volume');
  let image: string;
  let settings: {
    Entrypoint: string[];
    Env: string[];
    WorkingDir: string;
    ExposedPorts: object;
    Volumes: object;
  };
  const ends: (() => Promise<unknown>)[] = [];
  afterAll(async () => {
    for (const end of ends) await end();
    await buildah('umount', '--all').catch(() => {});
    execFileSync('rm', ['-rf', folder]);
  });

  const storage = [
    '--root',
    join(folder, 'storage'),
    '--runroot',
    join(folder, 'run'),
    '--storage-driver',
    'vfs',
  ];
  const buildah = async (...words: string[]) => {
    const env = { ...process.env, BUILDAH_ISOLATION: 'chroot', TMPDIR: folder };
    const options = { maxBuffer: 256 * 2 ** 20, env };
    return (await promisify(execFile)('buildah', [...storage, ...words], options)).stdout.trim();
  };

  /** An empty Debian as its image, with the authorities that this machine trusts. */
  async function buildBase(): Promise<void> {
    const base = join(folder, 'base');
    await installDebian(base, ['ca-certificates']);
    writeFileSync(join(base, 'etc/dpkg/dpkg.cfg.d/container'), 'force-unsafe-io\n');
    writeFileSync(join(base, 'usr/sbin/policy-rc.d'), '#!/bin/sh\nexit 101\n', { mode: 0o755 });
    // A mirror that was frozen is as good as a current one.
    writeFileSync(join(base, 'etc/apt/apt.conf.d/frozen'), 'Acquire::Check-Valid-Until "false";\n');
    cpSync(join('/', AUTHORITIES), join(base, 'usr/local/share/ca-certificates/machine.crt'));
    const { PATH } = process.env;
    execFileSync('chroot', [base, 'update-ca-certificates'], { stdio: 'ignore', env: { PATH } });
    const scratch = await buildah('from', 'scratch');
    await buildah('add', '--quiet', scratch, base, '/');
    await buildah('commit', '--quiet', '--rm', scratch, 'base');
    execFileSync('rm', ['-rf', base]);
  }

  let containers = 0;
  /** @param more settings besides those of the image */
  function start(more: Record<string, string> = {}) {
    containers += 1;
    const layer = join(folder, `layer-${containers}`);
    mkdirSync(layer);
    const variables = [
      ...settings.Env,
      'HOME=/root',
      ...Object.entries(more).map(([name, value]) => `${name}=${value}`),
    ];
    const command = [`--chdir=${settings.WorkingDir}`, ...variables, ...settings.Entrypoint];
    const namespaces = ['--mount', '--pid', '--fork', '--kill-child', '--net', '--ipc', '--uts'];
    const child = spawn('unshare', [
      ...namespaces,
      'sh',
      '-c',
      CONTAINER,
      'run',
      image,
      layer,
      volume,
      ...command,
    ]);
    let printed = '';
    for (const stream of [child.stdout, child.stderr])
      stream.setEncoding('utf8').on('data', (text: string) => {
        printed += text;
      });
    const ended = once(child, 'exit');
    ends.push(async () => {
      child.kill('SIGKILL');
      await ended;
    });
    const first = () => childrenOf(child.pid)[0] ?? '';
    return {
      printed: () => printed,
      async untilReady() {
        const over = ended.then(() => Promise.reject(new Error(printed)));
        const ready = eventually(async () => {
          if (!printed.includes(READY)) throw new Error(printed);
        }, 120);
        await Promise.race([ready, over]);
      },
      /** Runs a command of a shell in the container, as `docker exec` does. */
      async run(text: string): Promise<string> {
        const enter = ['--target', first(), '--all', '--root', '--', 'env', '-i', '--chdir=/', ...variables];
        return (await promisify(execFile)('nsenter', [...enter, 'sh', '-ec', text])).stdout;
      },
      /** As `docker stop` does. @returns the exit code */
      async stop(): Promise<number> {
        process.kill(Number(first()), 'SIGTERM');
        const [code] = await ended;
        return code;
      },
    };
  }

  test('is built from a Debian, and says what it opens and keeps', { timeout: BUILT_WITHIN_MS }, async () => {
    mkdirSync(volume);
    await buildBase();
    await buildah(
      ...['build', '--quiet', '--pull-never', '--network', 'host', '--build-arg', 'BASE=localhost/base'],
      ...['--tag', 'branchgate', ROOT],
    );
    settings = JSON.parse(await buildah('inspect', '--type', 'image', 'localhost/branchgate')).OCIv1.config;
    expect(Object.keys(settings.ExposedPorts).sort()).toEqual(['5432/tcp', '6432/tcp', '8787/tcp']);
    expect(Object.keys(settings.Volumes)).toEqual(['/data']);
    image = await buildah('mount', await buildah('from', '--pull-never', 'localhost/branchgate'));
    for (const path of ['.git', '.dev', 'docs', 'test'])
      expect([path, existsSync(join(image, 'opt/branchgate', path))]).toEqual([path, false]);
  });

  test('leads from nothing to psql by the commands of its page, and ends when it is stopped', {
    timeout: TRIED_WITHIN_MS,
  }, async () => {
    const began = performance.now();
    const container = start();
    await container.untilReady();
    process.stdout.write(
      `MEASURED image: ready after ${((performance.now() - began) / 1000).toFixed(1)} s\n`,
    );
    expect(container.printed()).toContain('not for production');
    const { clone_method } = JSON.parse(await container.run('cat /data/stack.json'));
    expect(container.printed().includes('full copy')).toBe(clone_method === 'copy');

    const commands = [...PAGE.matchAll(/^docker exec -it branchgate (.+)$/gm)].map(
      ([, command = '']) => command,
    );
    expect(commands).toHaveLength(3);
    const [login = '', create = '', psql = ''] = commands;
    // Instead of the terminal.
    await container.run(`echo branchgate | ${login} --password-stdin && ${create}`);
    await container.run(`${psql} -- -c 'create table kept as select 7 as n'`);
    await container.run('branchgate branch create pr-1 --allow me');
    expect(await container.run(`branchgate psql pr-1 -- -Atc 'select n from kept'`)).toBe('7\n');

    // What an engine publishes has to be open beyond the loopback; the console is a page.
    const reach = `fetch('http://${OUTSIDE}:8787/').then(async (page) => console.log(page.status, (await page.text()).includes('<title>')))`;
    expect(await container.run(`node -e "${reach}"`)).toBe('200 true\n');
    for (const port of [5432, 6432]) {
      const knock = `require('node:net').connect(${port}, '${OUTSIDE}').on('connect', () => process.exit(0)).on('error', () => process.exit(1))`;
      await container.run(`node -e "${knock}"`);
    }
    expect(await container.stop()).toBe(0);
    expect(container.printed()).toMatch(/stopping\n$/);
  });

  test('another container continues with the volume, also with two hosts', {
    timeout: TRIED_WITHIN_MS,
  }, async () => {
    const [, hosts = ''] = /HOSTS: "(\d)"/.exec(read('compose.yaml')) ?? [];
    const container = start({ HOSTS: hosts });
    await container.untilReady();
    expect(container.printed()).toMatch(/^agent-2 +linked/m);
    const signIn =
      'echo branchgate | branchgate login --email ada@example.com --password-stdin && branchgate link shop';
    await container.run(signIn);
    expect(await container.run(`branchgate psql -- -Atc 'select n from kept'`)).toBe('7\n');
    expect(await container.stop()).toBe(0);
  });
});
