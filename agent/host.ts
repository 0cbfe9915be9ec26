import { randomUUID } from 'node:crypto';
import { constants, copyFile, rm, writeFile } from 'node:fs/promises';
import { join } from 'node:path';
import { RuleSync } from './access/sync-rules.ts';
import { openPool, type Pool } from './postgres/connect.ts';
import { PageMarks } from './rows/page-marks.ts';
import { Slots } from './rows/slots.ts';
import { Walks } from './rows/walks.ts';
import type { AgentSettings } from './settings.ts';

/** How a clone is made: sharing the source's blocks, or copying every one. */
export type CloneMethod = 'reflink' | 'copy';

/** What every operation works on. */
export interface Host {
  settings: AgentSettings;
  /** For short statements: none of these sessions waits for an operation. */
  postgres: Pool;
  /** For operations, which hold their locks in one of these sessions each. */
  sessions: Pool;
  rules: RuleSync;
  /** What the table browser keeps between two operations. */
  rows: { places: Slots; marks: PageMarks; walks: Walks };
  cloneMethod: CloneMethod;
}

/** Together within the sessions that the configuration reserves for the agent. */
const SHORT_SESSIONS = 4;
const OPERATION_SESSIONS = 14;

/** Opens no session yet: a server that is away is told by the operation that needs it. */
export async function openHost(settings: AgentSettings): Promise<Host> {
  const postgres = openPool(settings, SHORT_SESSIONS);
  return {
    settings,
    postgres,
    sessions: openPool(settings, OPERATION_SESSIONS),
    rules: new RuleSync(settings, postgres),
    rows: { places: new Slots(), marks: new PageMarks(), walks: new Walks() },
    cloneMethod: await probeCloneMethod(settings.PGDATA_DIR),
  };
}

export async function closeHost({ postgres, sessions, rows }: Host): Promise<void> {
  await rows.walks.close();
  await Promise.all([postgres.end(), sessions.end()]);
}

/** Whether the data directory's file system lets two files share their blocks, found by trying. */
async function probeCloneMethod(dataDir: string): Promise<CloneMethod> {
  const original = join(dataDir, `branchgate-probe-${randomUUID()}`);
  const clone = `${original}-clone`;
  try {
    await writeFile(original, 'probe');
    await copyFile(original, clone, constants.COPYFILE_FICLONE_FORCE);
    return 'reflink';
  } catch {
    return 'copy';
  } finally {
    await Promise.all([rm(original, { force: true }), rm(clone, { force: true })]).catch(() => {});
  }
}
