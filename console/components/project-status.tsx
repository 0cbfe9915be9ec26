import type { Project } from '../app/resources.ts';
import { TEXT } from '../strings.ts';

const TONES: Record<string, string> = {
  active: 'good',
  creating: 'accent busy',
  deleting: 'busy',
  failed: 'bad',
};

export function ProjectStatus({ project }: { project: Project }) {
  if (project.status === 'active' && project.storage_state !== 'normal') {
    const tone = project.storage_state === 'warning' ? 'warn' : 'bad';
    return <span className={`badge ${tone}`}>{TEXT.storage.badges[project.storage_state]}</span>;
  }
  return <span className={`badge ${TONES[project.status] ?? ''}`}>{project.status}</span>;
}
