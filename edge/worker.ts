import { freezeIntrinsics, WEB_NAMES } from '../shared/frozen-intrinsics.ts';
import { refreshLists } from './access/named-networks.ts';
import { app } from './app.ts';
import { removeHistory } from './audit/retention.ts';
import { coordinatorOf, mailsOf } from './coordinator/coordinator-rpc.ts';
import { openDatabase } from './database/database.ts';
import type { Env } from './env.ts';
import { logEvent } from './log.ts';
import { mailAboutDrills } from './monitoring/recovery-drills.ts';
import { deleteUnusedClients } from './oauth/clients.ts';
import { readSettings } from './settings.ts';

export { ProjectCoordinator } from './coordinator/project-coordinator.ts';
export { HostLink } from './host-link/host-link.ts';
export { RateLimiter } from './rate-limits/rate-limiter.ts';
export { Challenges } from './sign-in/challenges.ts';
export { WebhookSender } from './webhooks/webhook-sender.ts';

// The isolate serves all tenants, in the Worker and in each Durable Object.
freezeIntrinsics(WEB_NAMES);

/** Files of the console, whose names contain a hash of their content. */
const FILES = '/assets/';

const MISSING_FILE = {
  'Cache-Control': 'no-store',
  'Content-Security-Policy': "default-src 'none'; frame-ancestors 'none'",
  'Content-Type': 'text/plain;charset=UTF-8',
  'Referrer-Policy': 'no-referrer',
  'Strict-Transport-Security': 'max-age=15552000; includeSubDomains',
  'X-Content-Type-Options': 'nosniff',
};

/**
 * A file of the console. The static assets return the console's page for a path without a file, which caches
 * would keep for a year under the name of a file that a later release has.
 */
async function fileOfConsole(request: Request, files: Fetcher | undefined): Promise<Response> {
  const file = await files?.fetch(request);
  const isPage = file?.headers.get('Content-Type')?.startsWith('text/html') ?? false;
  if (file && !isPage) return file;
  await file?.body?.cancel();
  return new Response('Not found.\n', { status: 404, headers: MISSING_FILE });
}

/** Keeps current what is fetched elsewhere. A project that is left out is found at its next reconciliation. */
async function runScheduled(env: Env): Promise<void> {
  await removeHistory(openDatabase(env.DB), readSettings(env), new Date()).catch((error: unknown) =>
    logEvent('history.not_removed', { reason: String(error) }),
  );
  await mailAboutDrills(env, mailsOf(env), new Date()).catch((error: unknown) =>
    logEvent('drill.not_mailed', { reason: String(error) }),
  );
  await deleteUnusedClients(openDatabase(env.DB), new Date());
  const changed = await refreshLists(openDatabase(env.DB), readSettings(env), new Date());
  for (const projectId of changed)
    await coordinatorOf(env, projectId)
      .applyAccess()
      .catch((error: unknown) =>
        logEvent('access.not_applied', { project_id: projectId, reason: String(error) }),
      );
}

export default {
  fetch: (request, env, context) =>
    new URL(request.url).pathname.startsWith(FILES)
      ? fileOfConsole(request, env.ASSETS)
      : app.fetch(request, env, context),
  scheduled: (_event, env) => runScheduled(env),
} satisfies ExportedHandler<Env>;
