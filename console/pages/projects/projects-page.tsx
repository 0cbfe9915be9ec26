import { useQuery } from '@tanstack/react-query';
import { createFileRoute, Link } from '@tanstack/react-router';
import { bytes, gib } from '../../../shared/format.ts';
import { CommandLine } from '../../components/copy.tsx';
import { Empty, Loaded } from '../../components/feedback.tsx';
import { Icon } from '../../components/icon.tsx';
import { Page } from '../../components/page.tsx';
import { type Project, projectsQuery } from '../../data/resources.ts';
import { mayChange, sessionStore } from '../../data/session.ts';
import { useStore } from '../../data/store.ts';
import { COMMANDS } from '../../strings/commands.ts';
import { TEXT } from '../../strings/common.ts';
import './projects.css';

const BADGES = { warning: 'Storage low', write_blocked: 'Write-blocked', closed: 'Closed' } as Record<
  string,
  string
>;

const TONES: Record<string, string> = {
  active: 'good',
  creating: 'accent busy',
  deleting: 'busy',
  failed: 'bad',
};

function ProjectStatus({ project }: { project: Project }) {
  if (project.status === 'active' && project.storage_state !== 'normal') {
    const tone = project.storage_state === 'warning' ? 'warn' : 'bad';
    return <span className={`badge ${tone}`}>{BADGES[project.storage_state]}</span>;
  }
  return <span className={`badge ${TONES[project.status] ?? ''}`}>{project.status}</span>;
}

const ProjectCard = ({ project }: { project: Project }) => (
  <li>
    <Link to="/projects/$projectId" params={{ projectId: project.id }} className="card project-card">
      <span className="row">
        <h2 className="grow truncate">{project.name}</h2>
        <ProjectStatus project={project} />
      </span>
      <span className="mono quiet small truncate">
        {project.app_key}_{project.env}
      </span>
      <dl className="project-facts">
        <div>
          <dt>Branches</dt>
          <dd>
            {project.branch_count} <span className="quiet">/ {project.branch_limit}</span>
          </dd>
        </div>
        <div>
          <dt>Storage</dt>
          <dd>
            {bytes(project.storage_used_bytes)}{' '}
            <span className="quiet">/ {gib(project.storage_quota_gib)}</span>
          </dd>
        </div>
      </dl>
    </Link>
  </li>
);

export const Route = createFileRoute('/_inside/')({ component: ProjectsPage });

function ProjectsPage() {
  const projects = useQuery(projectsQuery());
  const session = useStore(sessionStore);
  const mayCreate = session.state === 'signed_in' && mayChange(session.me);
  const create = mayCreate && (
    <Link to="/new" className="button primary">
      <Icon name="plus" /> New project
    </Link>
  );
  return (
    <Page
      title={TEXT.nav.projects}
      about="Each project has a main database and the branches that are cloned from it."
      actions={create}
    >
      <Loaded query={projects}>
        {(all) =>
          all.length === 0 ? (
            <div className="card">
              <Empty icon="database" title="No projects yet">
                <p>
                  {mayCreate
                    ? 'Create one to get its main database, then branch it.'
                    : 'Projects that somebody shares with you appear here.'}
                </p>
                {create}
              </Empty>
            </div>
          ) : (
            <ul className="project-grid">
              {all.map((project) => (
                <ProjectCard key={project.id} project={project} />
              ))}
            </ul>
          )
        }
      </Loaded>
      <CommandLine command={COMMANDS.listProjects} />
    </Page>
  );
}
