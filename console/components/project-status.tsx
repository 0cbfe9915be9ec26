import type { Project } from '../app/resources.ts';
import { STORAGE_TEXT } from '../strings/storage.ts';

const TONES: Record<string, string> = {
  active: 'good',
  creating: 'accent busy',
  deleting: 'busy',
  failed: 'bad',
};

export function ProjectStatus({ project }: { project: Project }) {
  if (project.status === 'active' && project.storage_state !== 'normal') {
    const tone = project.storage_state === 'warning' ? 'warn' : 'bad';
    return <span className={`badge ${tone}`}>{STORAGE_TEXT.badges[project.storage_state]}</span>;
  }
  return <span className={`badge ${TONES[project.status] ?? ''}`}>{project.status}</span>;
}
