import { execFile } from 'node:child_process';
import { createHash } from 'node:crypto';
import {
  chmodSync,
  copyFileSync,
  mkdirSync,
  mkdtempSync,
  readdirSync,
  readFileSync,
  rmSync,
  statSync,
  utimesSync,
  writeFileSync,
} from 'node:fs';
import { tmpdir } from 'node:os';
import { dirname, join } from 'node:path';
import { promisify } from 'node:util';
import { constants, gzipSync } from 'node:zlib';
import { controlTool } from '../../agent/control-tool/control-tool.ts';
import { EXIT_CODES } from '../../agent/control-tool/exit-codes.ts';
import { sha256Of } from '../../agent/upgrade/program-file.ts';
import { VERSION } from '../../shared/version.ts';
import { bundleAgent } from './agent.ts';
import { manualPage } from './manual-page.ts';
import { ROOT, sourceDate } from './repository.ts';

const run = promisify(execFile);

/** Debian's names of the machines for which npm installs a Node. */
const ARCHITECTURES: Partial<Record<NodeJS.Architecture, string>> = { x64: 'amd64', arm64: 'arm64' };

/** Folder of the files that only the package has. */
const DEBIAN = join(ROOT, 'agent/debian');
const LIBRARY = 'usr/lib/branchgate-agent';
const DOCUMENTS = 'usr/share/doc/branchgate-agent';
/** Node as its project publishes it, which the package `node` has installed for this machine. */
const NODE = join(ROOT, 'node_modules/node/bin/node');
const NODE_LICENSE = join(ROOT, `node_modules/node/node_modules/node-linux-${process.arch}/LICENSE`);

const compressed = (content: string | Buffer) => gzipSync(content, { level: constants.Z_BEST_COMPRESSION });

interface Packed {
  content: string | Buffer;
  /** 0o644 by default. */
  mode?: number;
}

/** The unit, with the Node of the package. */
const unit = () =>
  readFileSync(join(ROOT, 'agent/systemd/branchgate-agent.service'), 'utf8').replace(
    '/usr/bin/env node',
    `/${LIBRARY}/node`,
  );

/** Everything that is installed but Node, by its path without the leading slash. */
async function files(program: string, date: string, changelog: string): Promise<Record<string, Packed>> {
  const agent = readFileSync(program);
  const completion = await run(process.execPath, [program, 'completion', 'bash']);
  const manual = manualPage(controlTool(null), { date, exitCodes: Object.values(EXIT_CODES) });
  return {
    [`${LIBRARY}/branchgate-agent.mjs`]: { content: agent },
    [`${LIBRARY}/branchgate-agent.mjs.sha256`]: { content: `${sha256Of(agent)}  branchgate-agent.mjs\n` },
    'usr/bin/branchgate-agent': { content: readFileSync(join(DEBIAN, 'branchgate-agent')), mode: 0o755 },
    'usr/lib/systemd/system/branchgate-agent.service': { content: unit() },
    'etc/branchgate/agent.env': { content: readFileSync(join(DEBIAN, 'agent.env')) },
    'usr/share/man/man8/branchgate-agent.8.gz': { content: compressed(manual) },
    'usr/share/bash-completion/completions/branchgate-agent': { content: completion.stdout },
    [`${DOCUMENTS}/copyright`]: { content: readFileSync(join(DEBIAN, 'copyright')) },
    [`${DOCUMENTS}/LICENSE.node.gz`]: { content: compressed(readFileSync(NODE_LICENSE)) },
    [`${DOCUMENTS}/changelog.gz`]: { content: compressed(changelog) },
    'usr/share/lintian/overrides/branchgate-agent': {
      content: readFileSync(join(DEBIAN, 'lintian-overrides')),
    },
  };
}

const MAINTAINER = 'branchgate maintainers <maintainers@branchgate.example>';

const control = (architecture: string, installedKib: number) => `\
Package: branchgate-agent
Version: ${VERSION}
Section: database
Priority: optional
Architecture: ${architecture}
Maintainer: ${MAINTAINER}
Installed-Size: ${installedKib}
Depends: libc6 (>= 2.28), libgcc-s1, libstdc++6 (>= 9), logrotate, procps, postgresql-client-18 | postgresql-client (>= 18)
Recommends: postgresql-18, pgbouncer, xfsprogs, nftables
Suggests: pgbackrest
Description: agent of a branchgate database host
 branchgate is a gateway for managed PostgreSQL databases with copy-on-write
 branches. The agent runs next to PostgreSQL and PgBouncer, connects to the
 gateway, and creates, clones and drops the databases of branches.
 .
 "branchgate-agent join" configures both servers and enrols the host.
`;

/** Debian's form of a changelog, which its tools read. */
const debianChangelog = (date: Date) => `\
branchgate-agent (${VERSION}) stable; urgency=medium

  * Release ${VERSION} of branchgate.

 -- ${MAINTAINER}  ${date.toUTCString().replace('GMT', '+0000')}
`;

interface Options {
  /** Compression of dpkg-deb. With `xz` the package has 30 MB and takes a minute, with `none` 130 MB and two seconds. */
  compression?: 'xz' | 'none';
}

/**
 * Makes the Debian package of the agent for this machine's architecture.
 * @returns its path in `folder`
 * @throws Error on a machine for which Node has no release with Debian's name
 */
export async function buildDebianPackage(
  folder: string,
  { compression = 'xz' }: Options = {},
): Promise<string> {
  const architecture = ARCHITECTURES[process.arch];
  if (!architecture) throw new Error(`there is no package for ${process.arch}: build it on x64 or arm64`);
  const seconds = sourceDate();
  const date = new Date(seconds * 1000);
  const work = mkdtempSync(join(tmpdir(), 'branchgate-package-'));
  try {
    const program = join(work, 'branchgate-agent.mjs');
    await bundleAgent(program);
    const root = join(work, 'root');
    const packed = await files(program, date.toISOString().slice(0, 10), debianChangelog(date));
    for (const [path, { content, mode = 0o644 }] of Object.entries(packed))
      place(join(root, path), content, mode);
    const node = join(root, LIBRARY, 'node');
    copyFileSync(NODE, node);
    chmodSync(node, 0o755);

    const paths = listed(root);
    const kib = paths.reduce((sum, path) => sum + Math.ceil(statSync(join(root, path)).size / 1024), 0);
    place(join(root, 'DEBIAN/control'), control(architecture, kib));
    place(join(root, 'DEBIAN/conffiles'), '/etc/branchgate/agent.env\n');
    place(join(root, 'DEBIAN/md5sums'), paths.map((path) => `${md5(join(root, path))}  ${path}\n`).join(''));
    for (const script of ['postinst', 'prerm', 'postrm'])
      place(join(root, 'DEBIAN', script), readFileSync(join(DEBIAN, script)), 0o755);
    settle(root, seconds);

    mkdirSync(folder, { recursive: true });
    const file = join(folder, `branchgate-agent_${VERSION}_${architecture}.deb`);
    const env = { ...process.env, SOURCE_DATE_EPOCH: String(seconds) };
    // The number of threads would change the bytes.
    const options = ['--root-owner-group', `-Z${compression}`, '--threads-max=1'];
    await run('dpkg-deb', [...options, '--build', root, file], { env });
    return file;
  } finally {
    rmSync(work, { recursive: true });
  }
}

function place(path: string, content: string | Buffer, mode = 0o644): void {
  mkdirSync(dirname(path), { recursive: true });
  writeFileSync(path, content);
  // Whatever the umask is.
  chmodSync(path, mode);
}

/** The installed files below `root`, sorted. */
const listed = (root: string) =>
  readdirSync(root, { recursive: true, encoding: 'utf8' })
    .filter((path) => statSync(join(root, path)).isFile())
    .sort();

const md5 = (path: string) => createHash('md5').update(readFileSync(path)).digest('hex');

/** Gives every file and folder the time of the commit, and folders the mode that others can enter. */
function settle(folder: string, seconds: number): void {
  for (const name of readdirSync(folder)) {
    const path = join(folder, name);
    if (statSync(path).isDirectory()) settle(path, seconds);
    else utimesSync(path, seconds, seconds);
  }
  chmodSync(folder, 0o755);
  utimesSync(folder, seconds, seconds);
}

/** `npm run package` */
if (import.meta.main) console.log(await buildDebianPackage(join(ROOT, 'dist')));
