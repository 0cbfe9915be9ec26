import { stat } from 'node:fs/promises';
import { dirname } from 'node:path';
import type { CloneMethod } from '../cloning/create-clone.ts';
import { type AgentSettings, pastFolder } from '../process/settings.ts';

/** Hours that are kept: those of the settings, or a day where files share blocks. 0: none. */
export const recoveryHours = (
  { RECOVERY_WINDOW_HOURS }: Pick<AgentSettings, 'RECOVERY_WINDOW_HOURS'>,
  method: CloneMethod,
): number => RECOVERY_WINDOW_HOURS ?? (method === 'reflink' ? 24 : 0);

/** How base copies are made: files of two volumes share no blocks. */
export async function methodOfPast(
  settings: Pick<AgentSettings, 'PGDATA_DIR' | 'PAST_DIR'>,
  method: CloneMethod,
): Promise<CloneMethod> {
  const folder = pastFolder(settings);
  const past = await stat(folder).catch(() => stat(dirname(folder)).catch(() => null));
  const data = await stat(settings.PGDATA_DIR).catch(() => null);
  return past !== null && past.dev === data?.dev ? method : 'copy';
}
