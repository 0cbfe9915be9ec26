import { and, eq, inArray, isNull } from 'drizzle-orm';
import type { BlockReason, BranchBlock, ProjectBlocks } from '../../shared/block.ts';
import { auditEvent, noActor } from '../audit/audit-event.ts';
import type { StoredBlock } from '../database/column-types.ts';
import { isLive } from '../database/conditions.ts';
import { type Database, insertIf, isThere } from '../database/database.ts';
import { guardedWrite } from '../database/guarded-write.ts';
import { auditEvents, type ProjectRow, projectBranches, projects, users } from '../database/schema.ts';
import { Turns } from '../jobs/turns.ts';
import { type Mail, plainMail, sendsMail } from '../mail/mail.ts';
import type { Outbox } from '../mail/outbox.ts';
import type { Settings } from '../settings.ts';

/** A project whose branches can be blocked. */
export interface BlockSubject {
  project: ProjectRow;
  branches: { id: string; branchName: string; blocks: StoredBlock[] }[];
  /** Address of the user who created the project; null if that user has moved to another tenant. */
  ownerEmail: string | null;
}

const BLOCKABLE = ['creating', 'active', 'expired'] as const;

/** Reads the project; null if it is not active. */
async function readBlockSubject(db: Database, projectId: string): Promise<BlockSubject | null> {
  const isProject = and(eq(projects.id, projectId), eq(projects.status, 'active'));
  const [[project], branches, [owner]] = await db.batch([
    db.select().from(projects).where(isProject),
    db
      .select({
        id: projectBranches.id,
        branchName: projectBranches.branchName,
        blocks: projectBranches.blocks,
      })
      .from(projectBranches)
      .where(
        and(eq(projectBranches.projectId, projectId), isLive, inArray(projectBranches.status, BLOCKABLE)),
      ),
    db
      .select({ email: users.email })
      .from(users)
      .innerJoin(projects, and(eq(projects.createdBy, users.id), eq(projects.tenantId, users.tenantId)))
      .where(isProject),
  ]);
  return project ? { project, branches, ownerEmail: owner?.email ?? null } : null;
}

interface BranchChange {
  branchId: string;
  blocks: StoredBlock[];
  /** Blocks that are new, and those that have ended. */
  begun: StoredBlock[];
  ended: StoredBlock[];
}

/** Compares the observed blocks with the recorded ones. Blocks of branches without a record are ignored. */
function blockChanges({ branches }: Pick<BlockSubject, 'branches'>, observed: ProjectBlocks): BranchChange[] {
  const observedAt = Date.parse(observed.observed_at);
  return branches.flatMap(({ id, blocks: recorded }) => {
    const blocks = observed.blocks
      .filter(({ branch_id }) => branch_id === id)
      .map(({ branch_id: _, ...block }) => block)
      .sort((a, b) => a.reason.localeCompare(b.reason));
    // A block that ended before the observation and is there again is a new one.
    const isRunning = ({ reason }: StoredBlock) =>
      recorded.some((block) => block.reason === reason && Date.parse(block.until) >= observedAt);
    const begun = blocks.filter((block) => !isRunning(block));
    const ended = recorded.filter(({ reason }) => !blocks.some((block) => block.reason === reason));
    const isChanged = JSON.stringify(blocks) !== JSON.stringify(recorded);
    return isChanged ? [{ branchId: id, blocks, begun, ended }] : [];
  });
}

/** Longest time that an observation can be on its way. Milliseconds. */
const LATE_MS = 600_000;

/**
 * Whether something newer is recorded. A recorded time that is still to come is by a host whose clock was
 * ahead. One that is earlier by little, and still to come as well, is by the same clock and arrived late; any
 * other earlier one is by a clock that was set back.
 */
function isOutdated(
  { blocksObservedAt: recorded }: Pick<ProjectRow, 'blocksObservedAt'>,
  { observed_at }: ProjectBlocks,
  now: Date,
): boolean {
  const observed = new Date(observed_at);
  if (recorded === null || observed >= recorded) return false;
  return recorded <= now || (observed > now && recorded.getTime() - observed.getTime() <= LATE_MS);
}

/**
 * Stores the observed blocks and audits each block that is new or has ended, in one batch. An observation
 * that is outdated or recorded already changes nothing.
 * @param subject as it was read: the batch has no effect if the project has changed since
 * @returns false if the project has changed
 */
async function storeBlocks(
  db: Database,
  { project, branches }: BlockSubject,
  observed: ProjectBlocks,
  now: Date,
): Promise<boolean> {
  const { id: projectId, tenantId, blocksObservedAt } = project;
  const observedAt = new Date(observed.observed_at);
  if (isOutdated(project, observed, now) || observedAt.getTime() === blocksObservedAt?.getTime()) return true;
  const changes = blockChanges({ branches }, observed);
  const asRead = and(
    eq(projects.id, projectId),
    eq(projects.status, 'active'),
    eq(projects.tenantId, tenantId),
    blocksObservedAt === null
      ? isNull(projects.blocksObservedAt)
      : eq(projects.blocksObservedAt, blocksObservedAt),
  );
  const eventOf = (name: 'branch.blocked' | 'branch.unblocked', branchId: string, block: StoredBlock) =>
    auditEvent(name, noActor(tenantId), { projectId, branchId, metadata: { ...block } }, now);
  const written = await guardedWrite(db, {
    decides: (isAllowed) =>
      db
        .update(projects)
        .set({ blocksObservedAt: observedAt })
        .where(and(eq(projects.id, projectId), isAllowed)),
    require: [[isThere(projects, asRead), 'NOT_FOUND']],
    rest: (isAllowed) =>
      changes.flatMap(({ branchId, blocks, begun, ended }) => [
        ...ended.map((block) =>
          insertIf(db, auditEvents, eventOf('branch.unblocked', branchId, block), isAllowed),
        ),
        ...begun.map((block) =>
          insertIf(db, auditEvents, eventOf('branch.blocked', branchId, block), isAllowed),
        ),
        db
          .update(projectBranches)
          .set({ blocks })
          .where(and(eq(projectBranches.id, branchId), isAllowed)),
      ]),
  });
  return written.ok;
}

/** Between two mails about one branch and reason. Milliseconds. */
const MAIL_APART_MS = 3_600_000;

/** What the mail says about each reason; the others are in the record and the audit log only. */
const EXPLANATIONS: Partial<Record<BlockReason, string>> = {
  disk: 'Its sessions filled the disk of the database host. Check its statements for large temporary files and bulk writes; they end with the sessions.',
  connections:
    'The branches of its project, or all projects of its tenant, had more sessions or pooled clients together than they may have. Check the clients of all branches for connections that they do not close.',
  files:
    'Its project has more files on the database host than it may have, and the branch made more. Drop tables and indexes, or delete branches; the usage of the project shows the number.',
  autovacuum:
    'Functions of its tables (of an index expression, of statistics or of a range type) slept or took minutes in autovacuum. Autovacuum is off for these tables now, so vacuum and analyse them, change the functions, and turn it on again with ALTER TABLE … RESET (autovacuum_enabled).',
};

/** When a mail was sent, in Unix milliseconds, by branch and reason. */
export type MailedBlocks = Record<string, number>;

/**
 * The mails that are due for the observed blocks: at most one an hour for each branch and reason, to each
 * recipient.
 * @returns them, and when mails were sent with these
 */
function blockMails(
  { project, branches, ownerEmail }: BlockSubject,
  { blocks }: ProjectBlocks,
  { alertEmail, mailed, now }: { alertEmail: string | undefined; mailed: MailedBlocks; now: number },
): { mails: Mail[]; mailed: MailedBlocks } {
  const recent = Object.fromEntries(Object.entries(mailed).filter(([, at]) => now - at < MAIL_APART_MS));
  const recipients = new Set([ownerEmail, alertEmail].filter((address) => typeof address === 'string'));
  const mails: Mail[] = [];
  for (const block of blocks) {
    const branch = branches.find(({ id }) => id === block.branch_id);
    const explanation = EXPLANATIONS[block.reason];
    const key = `${block.branch_id} ${block.reason}`;
    if (!branch || !explanation || key in recent) continue;
    recent[key] = now;
    const names = { project: project.name, branch: branch.branchName, projectId: project.id };
    for (const to of recipients) mails.push(blockMail(to, names, block, explanation));
  }
  return { mails, mailed: recent };
}

const blockMail = (
  to: string,
  { project, branch, projectId }: { project: string; branch: string; projectId: string },
  { branch_id, reason, until }: BranchBlock,
  explanation: string,
): Mail =>
  plainMail(to, `Branch blocked (${reason}): ${branch} of ${project}`, [
    `Branch "${branch}" of project "${project}" accepts no connections until ${until}. The block is extended while its cause lasts.`,
    explanation,
    `Project ${projectId}, branch ${branch_id}.`,
  ]);

interface BlockRecorderOptions {
  db: Database;
  storage: DurableObjectStorage;
  settings: () => Settings;
  outbox: Outbox;
  /** Counts a mail about a project of this tenant. @returns whether it may be sent */
  mayAlert: (tenantId: string) => Promise<boolean>;
}

/** Storage key of the last observation, until it is recorded and its mails are in the outbox. */
const PENDING = 'pending_blocks';
/** Storage key of the times of the last mails. */
const MAILED = 'mailed_blocks';

interface Pending {
  observed: ProjectBlocks;
  /** The host that sent it. */
  hostId: string | undefined;
}

/**
 * Records the blocks of one project's branches. The observation is stored first, so that a crash loses
 * nothing.
 */
export class BlockRecorder {
  readonly #options: BlockRecorderOptions;
  /** Observations are recorded one after another, so that each sees the records of the one before. */
  readonly #recordings = new Turns(1);

  constructor(options: BlockRecorderOptions) {
    this.#options = options;
  }

  /** To be called with the object's alarm set, which calls `finish` after a crash. */
  async record(observed: ProjectBlocks, hostId?: string): Promise<void> {
    this.#options.storage.kv.put(PENDING, { observed, hostId } satisfies Pending);
    await this.finish();
  }

  /** Records the stored observation, if there is one. A repetition changes nothing. */
  async finish(): Promise<void> {
    const { storage } = this.#options;
    const release = await this.#recordings.take();
    try {
      const pending = storage.kv.get<Pending>(PENDING);
      if (!pending) return;
      await this.#store(pending);
      // A newer observation may have arrived meanwhile; its own call records it.
      const stored = storage.kv.get<Pending>(PENDING);
      if (stored?.observed.observed_at === pending.observed.observed_at) storage.kv.delete(PENDING);
    } finally {
      release();
    }
  }

  async #store({ observed, hostId }: Pending): Promise<void> {
    const { db, storage, settings, outbox, mayAlert } = this.#options;
    const subject = await readBlockSubject(db, observed.project_id);
    // A host may only report its own projects.
    if (!subject || (hostId ?? subject.project.hostId) !== subject.project.hostId) return;
    const now = new Date();
    if (isOutdated(subject.project, observed, now)) return;
    if (!(await storeBlocks(db, subject, observed, now))) {
      throw new Error(`project ${observed.project_id} has changed while its blocks were recorded`);
    }
    if (!sendsMail(settings())) return;
    const sending = { alertEmail: settings().ALERT_EMAIL, now: now.getTime() };
    const known = storage.kv.get<MailedBlocks>(MAILED) ?? {};
    const { mails, mailed } = blockMails(subject, observed, { ...sending, mailed: known });
    if (mails.length === 0) return;
    const admitted: Mail[] = [];
    for (const mail of mails) if (await mayAlert(subject.project.tenantId)) admitted.push(mail);
    // The mails and the record that they were sent are one write, because nothing is awaited between them.
    storage.kv.put(MAILED, mailed);
    for (const mail of admitted) outbox.put(mail, now.getTime());
  }
}
