import { setTimeout as sleep } from 'node:timers/promises';
import type { ProjectSizes } from '../../shared/measurement.ts';
import type { Log } from '../link/dispatch.ts';
import { type OwnSession, openPlatformSession } from '../postgres/connect.ts';
import type { AgentSettings } from '../settings.ts';
import { TroubleLog } from '../trouble-log.ts';
import { readProjectSizes, readWriteBlocked } from './project-sizes.ts';

const POLL_EVERY_MS = 1_000;
/** Share of its time that the watch may spend on reading sizes: a tenant can make that slow with very many files. */
const BUSY_SHARE = 0.1;
const STATEMENT_WITHIN_MS = 3_000;

interface Watching {
  settings: AgentSettings;
  log: Log;
  report: (sizes: ProjectSizes) => void;
  signal: AbortSignal;
}

/**
 * Reports the sizes of each project when it becomes write-blocked, and whenever its databases have shrunk, so that deleted data ends the
 * block immediately (specification 3.2). The regular measurement repeats a report that is lost. Never throws.
 */
export async function watchBlockedProjects({ settings, log, report, signal }: Watching): Promise<void> {
  const troubles = new TroubleLog(log);
  let session: OwnSession | null = null;
  /** Bytes at the last poll, by project. */
  let known = new Map<string, number>();
  while (!signal.aborted) {
    const started = performance.now();
    try {
      session ??= await openSession(settings, () => {
        session = null;
      });
      const blocked = await readWriteBlocked(session);
      const sizes = blocked.length > 0 ? await readProjectSizes(session, blocked) : [];
      const totals = new Map(sizes.map((project) => [project.project_id, totalOf(project)]));
      for (const project of sizes) {
        const { project_id } = project;
        if ((totals.get(project_id) ?? 0) < (known.get(project_id) ?? Number.POSITIVE_INFINITY))
          report(project);
      }
      known = totals;
      troubles.clearAll();
    } catch (error) {
      troubles.report('blocked_projects.unwatched', 'PostgreSQL', error);
    }
    const busy = performance.now() - started;
    const wait = Math.max(POLL_EVERY_MS, busy / BUSY_SHARE);
    await sleep(wait, undefined, { signal }).catch(() => {});
  }
  await session?.end().catch(() => {});
}

async function openSession(settings: AgentSettings, onLost: () => void): Promise<OwnSession> {
  const session = await openPlatformSession(settings, onLost);
  await session.query(`SET statement_timeout = ${STATEMENT_WITHIN_MS}; SET jit = off`);
  return session;
}

const totalOf = ({ sizes }: ProjectSizes) => Object.values(sizes).reduce((sum, bytes) => sum + bytes, 0);
