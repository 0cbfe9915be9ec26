import { execFile } from 'node:child_process';
import { createHash, createHmac, pbkdf2Sync, randomBytes } from 'node:crypto';
import {
  closeSync,
  existsSync,
  mkdirSync,
  openSync,
  readdirSync,
  readFileSync,
  writeFileSync,
  writeSync,
} from 'node:fs';
import { lstat, readdir, rm, stat, writeFile } from 'node:fs/promises';
import { dirname, join, normalize } from 'node:path';
import { promisify } from 'node:util';
import type pg from 'pg';
import { STANDBY_PATH, STANDBY_TYPE, StandbyReply } from '../../shared/protocol/standby.ts';
import { closeRuleFiles } from '../access/rule-files.ts';
import { signedRequest } from '../link/host-certificate.ts';
import type { HostIdentity } from '../link/identity.ts';
import type { OwnSession } from '../postgres/connect.ts';
import { type AgentSettings, rulesFolder } from '../process/settings.ts';
import { openReplication, type Primary, standbyConf } from './replication.ts';
import { moveMember, readMember, standbyFiles } from './stored-member.ts';

/** This machine cannot become a standby. The message says why, then what to do. */
export class CopyRefused extends Error {
  override readonly name = 'CopyRefused';
}

interface Copied {
  bytes: number;
  files: number;
}

/**
 * Replaces the data of this host by a copy of its primary's, so that it is the standby when PostgreSQL starts. A copy that was
 * interrupted is begun again, and PostgreSQL does not start before it is complete.
 * @throws CopyRefused, GatewayRefusal
 */
export async function copyPrimary(settings: AgentSettings, identity: HostIdentity): Promise<Copied> {
  if (!settings.GATEWAY_URL)
    throw new CopyRefused('GATEWAY_URL is missing: set it to the address of the gateway');
  requireReplaceable(settings);
  const password = randomBytes(32).toString('base64url');
  const primary = await requestAdmission(settings.GATEWAY_URL, identity, verifierOf(password));
  const { generation, ca_certificate: authority, login } = primary;
  const files = standbyFiles(settings);
  await writeFile(files.password, `*:*:*:${login}:${password}\n`, { mode: 0o600 });
  if (authority !== null) await writeFile(files.authority, authority, { mode: 0o600 });
  await moveMember(settings, 'copy begun', {
    closing: false,
    standby_id: null,
    lease_seconds: null,
    survived_until: null,
    generation,
    primary,
  });
  await closeRuleFiles(rulesFolder(settings));
  await emptyData(settings.PGDATA_DIR, OF_THIS_HOST);
  const copied = await receive(settings, primary);
  await writeFile(files.settings, standbyConf(settings, primary), { mode: 0o600 });
  writeFileSync(join(settings.PGDATA_DIR, 'standby.signal'), '', { mode: 0o600 });
  await promisify(execFile)('sync', ['-f', settings.PGDATA_DIR]);
  const { action } = await moveMember(settings, 'copy ended');
  if (action === 'reject')
    throw new CopyRefused('the role of this host has changed during the copy: run `branchgate-agent rejoin`');
  return copied;
}

/** Settings that were made by `ALTER SYSTEM`, such as the port, are those of one host. */
const OF_THIS_HOST: readonly string[] = ['postgresql.auto.conf'];

/** Keeps volumes: a folder in which one is mounted, and the link with which `initdb` puts the WAL on another one. */
export async function emptyData(folder: string, kept: readonly string[] = []): Promise<void> {
  const { dev } = await stat(folder);
  for (const name of await readdir(folder)) {
    if (kept.includes(name)) continue;
    const path = join(folder, name);
    const own = await lstat(path);
    const isVolume = own.isSymbolicLink() ? name === 'pg_wal' : own.isDirectory() && own.dev !== dev;
    if (isVolume) await emptyData(path);
    else await rm(path, { recursive: true });
  }
}

const requestAdmission = (gatewayUrl: string, identity: HostIdentity, verifier: string): Promise<Primary> =>
  signedRequest(
    gatewayUrl,
    identity,
    { path: STANDBY_PATH, typ: STANDBY_TYPE, claims: { verifier } },
    StandbyReply,
  );

/** First OID of objects that were made after `initdb`. */
const FIRST_OWN_OID = 16_384;

/** Only the data of a new cluster, of a standby and of a fenced host is replaced, and not under a running server. */
function requireReplaceable(settings: AgentSettings): void {
  const { PGDATA_DIR } = settings;
  if (postmasterOf(PGDATA_DIR) !== null)
    throw new CopyRefused(`PostgreSQL runs on ${PGDATA_DIR}: stop it first`);
  const member = readMember(settings);
  if (member && member.role !== 'primary' && member.role !== 'promoting') return;
  const base = join(PGDATA_DIR, 'base');
  const own = existsSync(base) ? readdirSync(base).filter((name) => Number(name) >= FIRST_OWN_OID) : [];
  if (own.length > 0)
    throw new CopyRefused(
      `${PGDATA_DIR} has ${own.length} databases of its own, which the copy would replace: use a machine with a new cluster, or drop them first`,
    );
}

/** The process id of the postmaster, which is the first line of the lock file; null if it does not run. */
export function postmasterOf(dataDir: string): number | null {
  try {
    const [pid] = readFileSync(join(dataDir, 'postmaster.pid'), 'utf8').split('\n');
    return readFileSync(`/proc/${pid}/cmdline`, 'utf8').includes('postgres') ? Number(pid) || null : null;
  } catch {
    return null;
  }
}

const ITERATIONS = 4096;

/** A verifier of SCRAM-SHA-256 as PostgreSQL stores it (RFC 5802). */
function verifierOf(password: string): string {
  const salt = randomBytes(16);
  const salted = pbkdf2Sync(password, salt, ITERATIONS, 32, 'sha256');
  const hmac = (text: string) => createHmac('sha256', salted).update(text).digest();
  const stored = createHash('sha256').update(hmac('Client Key')).digest('base64');
  return `SCRAM-SHA-256$${ITERATIONS}:${salt.toString('base64')}$${stored}:${hmac('Server Key').toString('base64')}`;
}

const BASE_BACKUP = `BASE_BACKUP (LABEL 'branchgate', CHECKPOINT 'fast', WAIT false, MANIFEST 'no')`;

/**
 * Receives the data. The slot keeps the WAL since then, so the copy needs none: the standby receives it when it starts.
 * @throws CopyRefused
 */
export async function receive(settings: AgentSettings, primary: Primary): Promise<Copied> {
  const session = await openReplication(settings, primary);
  const archive = new Archive(settings.PGDATA_DIR);
  try {
    await new Promise<void>((resolve, reject) => {
      session.once('end', () => reject(new Error('the connection to the primary was lost during the copy')));
      session.query(new BaseBackup(archive, (error) => (error ? reject(error) : resolve())));
    });
    await requireSlot(session, primary);
  } finally {
    await session.end().catch(() => {});
  }
  return archive.end();
}

/** @throws CopyRefused when the primary has dropped WAL that the standby needs */
async function requireSlot(session: OwnSession, { login }: Primary): Promise<void> {
  const { rows } = await session.query<{ restart_lsn: string | null }>(`READ_REPLICATION_SLOT ${login}`);
  if (rows[0]?.restart_lsn) return;
  throw new CopyRefused(
    'the primary wrote more WAL during the copy than it keeps for a standby, so the copy is worth nothing: set max_slot_wal_keep_size on the primary to more than it writes in this time, reload it, and run `branchgate-agent rejoin`',
  );
}

/**
 * The query that receives the archive: two result sets, the messages of a COPY, and one more result set (PostgreSQL's
 * documentation, chapter "Streaming Replication Protocol").
 */
class BaseBackup implements pg.Submittable {
  readonly #archive: Archive;
  readonly #end: (error: Error | null) => void;
  #failure: Error | null = null;

  constructor(archive: Archive, end: (error: Error | null) => void) {
    this.#archive = archive;
    this.#end = end;
  }

  submit(connection: pg.Connection): void {
    connection.query(BASE_BACKUP);
  }

  handleRowDescription(): void {}
  handleDataRow(): void {}
  handleCommandComplete(): void {}
  handlePortalSuspended(): void {}
  handleEmptyQuery(): void {}
  handleCopyInResponse(): void {}

  handleCopyData({ chunk }: { chunk: Buffer }): void {
    try {
      if (!this.#failure) this.#archive.take(chunk);
    } catch (error) {
      this.#failure = error as Error;
    }
  }

  handleError(error: Error): void {
    this.#end(this.#failure ?? error);
  }

  handleReadyForQuery(): void {
    this.#end(this.#failure);
  }
}

interface OpenFile {
  descriptor: number;
  /** Bytes of the file, and then of its last block. */
  left: number;
  padding: number;
}

const BLOCK = 512;

/** Kinds of messages of the copy, by their first byte. */
const NEW_ARCHIVE = 'n'.charCodeAt(0);
const DATA = 'd'.charCodeAt(0);

const NO_TABLESPACES = 'a standby cannot have them, so remove them first';

/**
 * Writes the files of a tar archive (POSIX.1-1988, as PostgreSQL makes it) as its bytes arrive. It writes synchronously, so that
 * the sender waits for a slow disk.
 */
export class Archive {
  readonly #folder: string;
  readonly #copied: Copied = { bytes: 0, files: 0 };
  #archives = 0;
  /** Bytes of a header that has not arrived completely. */
  #header = Buffer.alloc(0);
  /** The file that is being written. */
  #file: OpenFile | null = null;
  #isOver = false;

  constructor(folder: string) {
    this.#folder = folder;
  }

  /** @param message of the copy @throws Error when the archive is malformed, or the disk refuses */
  take(message: Buffer): void {
    const [kind] = message;
    if (kind === NEW_ARCHIVE) {
      this.#archives += 1;
      if (this.#archives > 1) throw new CopyRefused(`the primary has tablespaces: ${NO_TABLESPACES}`);
    }
    if (kind === DATA) this.#write(message.subarray(1));
  }

  /** @throws Error when the archive is not complete */
  end(): Copied {
    if (this.#file || !this.#isOver) throw new Error('the copy of the primary ended too early');
    return this.#copied;
  }

  #write(bytes: Buffer): void {
    let rest = bytes;
    while (rest.length > 0) rest = this.#file ? this.#writeFile(this.#file, rest) : this.#readHeader(rest);
    this.#copied.bytes += bytes.length;
  }

  #writeFile(file: OpenFile, bytes: Buffer): Buffer {
    const content = bytes.subarray(0, file.left);
    for (let written = 0; written < content.length; )
      written += writeSync(file.descriptor, content, written, content.length - written);
    file.left -= content.length;
    const padding = Math.min(file.padding, bytes.length - content.length);
    if (file.left === 0) file.padding -= padding;
    if (file.left === 0 && file.padding === 0) {
      closeSync(file.descriptor);
      this.#file = null;
    }
    return bytes.subarray(content.length + (file.left === 0 ? padding : 0));
  }

  #readHeader(bytes: Buffer): Buffer {
    const missing = BLOCK - this.#header.length;
    this.#header = Buffer.concat([this.#header, bytes.subarray(0, missing)]);
    if (this.#header.length === BLOCK) {
      const header = this.#header;
      this.#header = Buffer.alloc(0);
      this.#begin(header);
    }
    return bytes.subarray(missing);
  }

  #begin(header: Buffer): void {
    const field = (from: number, to: number) =>
      (header.toString('latin1', from, to).split('\0')[0] ?? '').trim();
    const name = field(0, 100);
    // Two blocks of zeros end an archive.
    if (name === '') {
      this.#isOver = true;
      return;
    }
    const path = this.#pathOf(name);
    const mode = Number.parseInt(field(100, 108), 8) & 0o777;
    const size = Number.parseInt(field(124, 136), 8);
    const type = field(156, 157);
    if (type === '5') mkdirSync(path, { recursive: true, mode });
    // Later files could be written through the link.
    else if (type === '2')
      throw new CopyRefused(`the copy of the primary has a link, ${name}: ${NO_TABLESPACES}`);
    else this.#open(path, mode, size);
  }

  #open(path: string, mode: number, size: number): void {
    if (!Number.isSafeInteger(size)) throw new Error('the copy of the primary has a malformed header');
    mkdirSync(dirname(path), { recursive: true, mode: 0o700 });
    const isOfPrimary = OF_THIS_HOST.some((name) => path === join(this.#folder, name));
    const descriptor = openSync(isOfPrimary ? '/dev/null' : path, 'w', mode);
    if (!isOfPrimary) this.#copied.files += 1;
    if (size === 0) closeSync(descriptor);
    else this.#file = { descriptor, left: size, padding: (BLOCK - (size % BLOCK)) % BLOCK };
  }

  /** A primary that was taken over must not write elsewhere. */
  #pathOf(name: string): string {
    const path = normalize(join(this.#folder, name));
    if (path !== normalize(this.#folder) && !path.startsWith(`${normalize(this.#folder)}/`))
      throw new Error('the copy of the primary names a file outside of its folder');
    return path;
  }
}
