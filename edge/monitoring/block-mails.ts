import type { BlockReason, BranchBlock, ProjectBlocks } from '../../shared/block.ts';
import type { Mail } from '../mail/mail.ts';
import { inOneLine, plainMail } from '../mail/plain-mail.ts';
import type { BlockSubject } from './store-blocks.ts';

/** Between two mails about one branch and reason. Milliseconds. */
const MAIL_APART_MS = 3_600_000;

/** What the mail says about each reason; the others are in the record and the audit log only. */
const EXPLANATIONS: Partial<Record<BlockReason, string>> = {
  disk: 'Its sessions filled the disk of the database host. Check its statements for large temporary files and bulk writes; they end with the sessions.',
  connections:
    'The branches of its project had more sessions together than a project may have. Check the clients of all its branches for connections that they do not close.',
};

/** When a mail was sent, in Unix milliseconds, by branch and reason. */
export type MailedBlocks = Record<string, number>;

/**
 * The mails that are due for the observed blocks: at most one an hour for each branch and reason, to each recipient.
 * @returns them, and when mails were sent with these
 */
export function blockMails(
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
    const names = { project: inOneLine(project.name), branch: branch.branchName, projectId: project.id };
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
