import { inDatabase, type Queryable } from '../postgres/connect.ts';
import { extensionsOfProject } from '../postgres/project-extensions.ts';
import type { AgentSettings } from '../process/settings.ts';
import { grantGroups } from './default-privileges.ts';
import { makeOwnSessions } from './own-sessions.ts';

/** Gives a new, empty database what all branches of its project inherit. */
export async function furnishDatabase(
  { settings, postgres }: { settings: AgentSettings; postgres: Queryable },
  { database, project_id }: { database: string; project_id: string },
): Promise<void> {
  const extensions = await extensionsOfProject(postgres, project_id);
  await inDatabase(settings, database, async (session) => {
    await grantGroups(session, project_id, extensions);
    await makeOwnSessions(session);
  });
}
