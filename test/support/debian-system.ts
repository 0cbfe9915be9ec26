import { type ChildProcess, execFile, execFileSync, spawn } from 'node:child_process';
import { once } from 'node:events';
import {
  cpSync,
  existsSync,
  globSync,
  mkdirSync,
  mkdtempSync,
  readFileSync,
  rmSync,
  symlinkSync,
  truncateSync,
  writeFileSync,
} from 'node:fs';
import { connect, createServer, type ListenOptions, type NetConnectOpts, type Server } from 'node:net';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { install } from './debian.ts';
import { eventually } from './eventually.ts';
import { oncePerRun } from './run-folder.ts';

const execute = promisify(execFile);

/** Whether this machine can boot a Debian system in namespaces. */
export const canBoot = (): boolean =>
  process.getuid?.() === 0 && install('debootstrap') && install('unshare', 'util-linux');

/** Debian 14, which has PostgreSQL 18 and a PgBouncer without known vulnerabilities. */
const SUITE = 'forky';
const MIRROR = 'http://deb.debian.org/debian';

/** A mirror that was frozen is as good as a current one. */
const FROZEN = ['--option', 'Acquire::Check-Valid-Until=false'];

/** A machine as its provider delivers it. */
const PACKAGES = [
  ...['systemd', 'systemd-sysv', 'udev', 'dbus', 'procps', 'iproute2', 'ca-certificates', 'openssl'],
  // For a boot of its own.
  ...(process.arch === 'x64' ? ['linux-image-cloud-amd64'] : []),
];

/** Those that `apt` installs in a test. It finds them in its cache, because the system has no network. */
const CACHED = ['postgresql-18', 'pgbouncer', 'nftables', 'xfsprogs', 'pgbackrest', 'logrotate'];

/** Whether this machine can boot a kernel in qemu. */
export const canEmulate = (): boolean =>
  process.arch === 'x64' && canBoot() && install('qemu-system-x86_64', 'qemu-system-x86');

/** Installs an empty Debian in a folder. An older debootstrap does not know the name of the suite, so it gets the script of all newer ones. */
export const installDebian = (folder: string, packages: readonly string[]) =>
  execute(
    'debootstrap',
    [
      ...['--variant=minbase', `--include=${packages.join(',')}`],
      ...[SUITE, folder, MIRROR, '/usr/share/debootstrap/scripts/sid'],
    ],
    { maxBuffer: 64 * 2 ** 20 },
  );

const baseSystem = (): Promise<string> =>
  oncePerRun('debian-root', async (folder) => {
    await installDebian(folder, PACKAGES);
    const apt = (...words: string[]) =>
      execute('chroot', [folder, 'apt-get', '--quiet', ...FROZEN, ...words], {
        maxBuffer: 64 * 2 ** 20,
      });
    await apt('update');
    await apt('install', '--yes', '--download-only', ...CACHED);
  });

/**
 * Boots the system with its own systemd, in namespaces: its processes, mounts and network are apart from those of this
 * machine, and settings of the kernel are read-only. $1 is the root.
 */
const BOOT = `set -e
R=$1
mount --make-rprivate /
mount --bind "$R" "$R"
mount -t proc proc "$R/proc"
mount -o bind "$R/proc/sys" "$R/proc/sys"
mount -o remount,ro,bind "$R/proc/sys"
mount -t sysfs -o ro sys "$R/sys"
umount -R "$R/sys/fs/cgroup" 2>/dev/null || true
mount -t cgroup2 cgroup2 "$R/sys/fs/cgroup"
mount -t tmpfs run "$R/run"
mount -t tmpfs tmp "$R/tmp"
mount -t tmpfs dev "$R/dev"
mkdir "$R/dev/pts" "$R/dev/shm"
for device in null zero full random urandom tty; do cp -a "/dev/$device" "$R/dev/"; done
mount -t tmpfs shm "$R/dev/shm"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$R/dev/pts"
ln -s pts/ptmx "$R/dev/ptmx"
ln -s /proc/self/fd "$R/dev/fd"
ip link set lo up
# The installer writes it, and debootstrap does not.
grep -qsw localhost "$R/etc/hosts" || printf '127.0.0.1 localhost\\n::1 localhost\\n' >> "$R/etc/hosts"
cd "$R"
exec env -i container=test PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$R" /lib/systemd/systemd`;

export interface Ran {
  code: number;
  stdout: string;
  stderr: string;
}

/** Passes connections on, in the system, from a port or a socket in its files to another. */
const FORWARDER = `const [at, ...target] = process.argv.slice(1); const net = require('node:net');
net.createServer((from) => { const to = net.connect(...target); from.pipe(to).pipe(from); for (const end of [from, to]) end.on('error', () => { from.destroy(); to.destroy(); }); }).listen(at, '127.0.0.1');`;

/** Passes connections on, on this machine. @returns once it listens */
async function passOn(at: ListenOptions, target: NetConnectOpts): Promise<Server> {
  const server = createServer((from) => {
    const to = connect(target);
    from.pipe(to).pipe(from);
    for (const end of [from, to])
      end.on('error', () => {
        from.destroy();
        to.destroy();
      });
  });
  await new Promise<void>((resolve) => server.listen(at, resolve));
  return server;
}

/** Offers the files of a folder. */
const FILE_SERVER = `const [folder, port] = process.argv.slice(1); const { createReadStream } = require('node:fs');
require('node:http').createServer(({ url }, response) => createReadStream(folder + decodeURI(url)).on('error', () => response.writeHead(404).end()).pipe(response)).listen(Number(port), '127.0.0.1', () => console.log('listening'));`;

const LOOPBACK = '127.0.0.1';
const NODE = '/usr/lib/branchgate-agent/node';

/** This machine's loopback, as a system in qemu sees it. */
const QEMU_HOST = '10.0.2.2';

/** Files that let an installed system reach its gateway from qemu. */
const qemuFiles = (gatewayPort: number): Record<string, string> => ({
  'etc/systemd/network/10-all.network': '[Match]\nName=e*\n[Network]\nDHCP=yes\n',
  'etc/systemd/system/forward.service': `[Service]
ExecStart=${NODE} /etc/forward.js ${gatewayPort} ${gatewayPort} ${QEMU_HOST}
Restart=always
`,
  'etc/forward.js': FORWARDER.replace('slice(1)', 'slice(2)'),
});

const QEMU_WANTS = {
  'forward.service': '/etc/systemd/system/forward.service',
  'systemd-networkd.service': '/lib/systemd/system/systemd-networkd.service',
};

/**
 * Boots a copy of an installed system with a kernel of its own. The system itself has to be stopped, as far as
 * it writes.
 * @param ports of the system by the port of this machine's loopback that leads there
 */
export async function bootInQemu(
  root: string,
  { gatewayPort, ports }: { gatewayPort: number; ports: Record<number, number> },
) {
  const folder = mkdtempSync(join(tmpdir(), 'branchgate-qemu-'));
  for (const [path, content] of Object.entries(qemuFiles(gatewayPort))) {
    mkdirSync(dirname(join(root, path)), { recursive: true });
    writeFileSync(join(root, path), content);
  }
  const wants = join(root, 'etc/systemd/system/multi-user.target.wants');
  mkdirSync(wants, { recursive: true });
  for (const [name, path] of Object.entries(QEMU_WANTS)) {
    rmSync(join(wants, name), { force: true });
    symlinkSync(path, join(wants, name));
  }
  const disk = join(folder, 'disk.img');
  await execute('mke2fs', ['-q', '-t', 'ext4', '-d', root, disk, '4G']);
  const boot = (name: string) => join(root, globSync(`boot/${name}-*-amd64`, { cwd: root })[0] ?? name);
  const forwards = Object.entries(ports).map(([from, to]) => `,hostfwd=tcp:127.0.0.1:${from}-:${to}`);
  const console = join(folder, 'console.log');
  const child = spawn(
    'qemu-system-x86_64',
    [
      // Without KVM: a virtual machine can have the device and not the instructions.
      ...['-machine', 'q35', '-accel', 'tcg,thread=multi', '-cpu', 'max', '-smp', '2', '-m', '4096'],
      ...['-display', 'none', '-monitor', 'none', '-serial', `file:${console}`, '-no-reboot'],
      ...['-kernel', boot('vmlinuz'), '-initrd', boot('initrd.img')],
      ...['-append', 'root=/dev/vda rw console=ttyS0 panic=1'],
      ...['-drive', `file=${disk},format=raw,if=virtio`],
      ...['-nic', `user,model=virtio-net-pci${forwards.join('')}`],
    ],
    { stdio: ['ignore', 'ignore', 'pipe'] },
  );
  let complaint = '';
  child.stderr.setEncoding('utf8').on('data', (text: string) => {
    complaint += text;
  });
  return {
    /** What the system has printed on its console, and qemu. */
    printed: () => complaint + (existsSync(console) ? readFileSync(console, 'utf8') : ''),
    hasEnded: () => child.exitCode !== null || child.signalCode !== null,
    async stop() {
      if (child.exitCode === null && child.signalCode === null) {
        const ended = once(child, 'exit');
        child.kill('SIGKILL');
        await ended;
      }
      rmSync(folder, { recursive: true });
    },
  };
}

/** The process IDs of a process's children, which has one thread. */
export const childrenOf = (pid: number | undefined) =>
  existsSync(`/proc/${pid}`)
    ? readFileSync(`/proc/${pid}/task/${pid}/children`, 'utf8').trim().split(' ')
    : [];

/** A running Debian system of its own. */
export async function bootDebian() {
  const folder = mkdtempSync(join(tmpdir(), 'branchgate-debian-'));
  const root = join(folder, 'root');
  await execute('cp', ['--archive', '--reflink=auto', await baseSystem(), root]);
  mkdirSync(join(root, 'srv/test'));
  const namespaces = ['--mount', '--pid', '--fork', '--kill-child', '--uts', '--ipc', '--net', '--cgroup'];
  const child: ChildProcess = spawn('unshare', [...namespaces, 'sh', '-c', BOOT, 'boot', root], {
    stdio: 'ignore',
  });
  const init = await eventually(async () => {
    const [pid] = childrenOf(child.pid);
    if (!pid) throw new Error('the system has not started');
    if (!readFileSync(`/proc/${pid}/comm`, 'utf8').startsWith('systemd')) throw new Error('still mounting');
    return pid;
  });
  const enter = ['--target', init, '--all', '--root', '--'];
  const environment = [
    'env',
    '-i',
    '--chdir=/',
    'PATH=/usr/sbin:/usr/bin:/sbin:/bin',
    'HOME=/root',
    'LC_ALL=C.UTF-8',
  ];

  const start = (words: readonly string[], onEnd: (ran: Ran) => void) =>
    execFile(
      'nsenter',
      [...enter, ...environment, ...words],
      { maxBuffer: 64 * 2 ** 20 },
      (error, stdout, stderr) => onEnd({ code: error ? Number(error.code ?? 255) : 0, stdout, stderr }),
    );
  const run = (...words: string[]): Promise<Ran> => new Promise((resolve) => start(words, resolve));
  /** Ends a command by SIGKILL when it has printed a text. What it has started continues. */
  const runUntil = (text: string, ...words: string[]): Promise<Ran> =>
    new Promise((resolve) => {
      const started = start(words, resolve);
      let printed = '';
      started.stdout?.on('data', (chunk: string) => {
        printed += chunk;
        if (!printed.includes(text)) return;
        // `nsenter` waits for the command and ends as it does.
        const [pid] = childrenOf(started.pid);
        if (pid) process.kill(Number(pid), 'SIGKILL');
      });
    });
  /** @throws Error with what it printed, if it fails */
  const must = async (...words: string[]): Promise<string> => {
    const { code, stdout, stderr } = await run(...words);
    if (code !== 0) throw new Error(`${words.join(' ')} ended with ${code}: ${stderr}${stdout}`);
    return stdout;
  };
  await eventually(async () => {
    const { stdout } = await run('systemctl', 'is-system-running');
    if (!/running|degraded/.test(stdout)) throw new Error(`the system is ${stdout}`);
  });
  const servers: Server[] = [];
  const children: ChildProcess[] = [];
  const loops: string[] = [];

  return {
    root,
    run,
    runUntil,
    must,
    /** Path of a file in the system. */
    at: (path: string) => join(root, path),
    /** Copies a file into the system. @returns its path there */
    give(file: string, name: string): string {
      cpSync(file, join(root, 'srv/test', name));
      return `/srv/test/${name}`;
    },
    /** Makes a file of this machine a disk of the system's. @param path such as `/dev/nvme1n1` */
    async addDisk(path: string, bytes: number) {
      const image = join(folder, 'disk.img');
      writeFileSync(image, '');
      truncateSync(image, bytes);
      const device = (await execute('losetup', ['--find', '--show', image])).stdout.trim();
      loops.push(device);
      const [major = '', minor = ''] = (await execute('stat', ['--format=%Hr %Lr', device])).stdout
        .trim()
        .split(' ');
      await must('mknod', path, 'b', major, minor);
    },
    /** Packages with what they recommend. */
    install: (...names: string[]) =>
      must('env', 'DEBIAN_FRONTEND=noninteractive', 'apt-get', 'install', '--yes', '--quiet', ...names),
    /** Offers a folder of this machine over HTTP on the system's loopback. */
    async serve(path: string, port: number) {
      const words = [
        '--target',
        init,
        '--net',
        '--',
        process.execPath,
        '-e',
        FILE_SERVER,
        path,
        String(port),
      ];
      const server = spawn('nsenter', words, { stdio: ['ignore', 'pipe', 'inherit'] });
      children.push(server);
      await once(server.stdout, 'data');
    },
    /** Makes a port of this machine's loopback a port of the system's. Needs the Node of the agent's package. */
    async forward(port: number) {
      const name = `srv/test/${port}.sock`;
      servers.push(await passOn({ path: join(root, name) }, { port, host: LOOPBACK }));
      await must('systemd-run', `--unit=forward-${port}`, NODE, '-e', FORWARDER, String(port), `/${name}`);
      await eventually(async () => {
        const probe = `require('node:net').connect(${port}, '127.0.0.1').on('connect', () => process.exit(0)).on('error', () => process.exit(1))`;
        await must(NODE, '-e', probe);
      });
    },
    /** Makes a port of the system's loopback a port of this machine's. Needs the Node of the agent's package. */
    async expose(port: number, there: number) {
      const name = `srv/test/exposed-${there}.sock`;
      const words = [NODE, '-e', FORWARDER, `/${name}`, String(there), LOOPBACK];
      await must('systemd-run', `--unit=expose-${there}`, ...words);
      await eventually(async () => {
        if (!existsSync(join(root, name))) throw new Error(`nothing passes port ${there} on`);
      });
      servers.push(await passOn({ port, host: LOOPBACK }, { path: join(root, name) }));
    },
    async stop() {
      for (const server of servers) server.close();
      for (const server of children) server.kill('SIGKILL');
      const ended = once(child, 'exit');
      child.kill('SIGKILL');
      await ended;
      // The kernel ends the processes of the namespaces with their first one.
      for (const device of loops) await execute('losetup', ['--detach', device]);
      await eventually(async () => execFileSync('rm', ['-rf', folder]));
    },
  };
}

export type DebianSystem = Awaited<ReturnType<typeof bootDebian>>;
