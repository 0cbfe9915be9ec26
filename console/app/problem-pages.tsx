import { type ErrorComponentProps, Link, useRouter } from '@tanstack/react-router';
import { ResponseError } from '../../client/response-error.ts';
import { Empty, ErrorNote } from '../components/feedback.tsx';
import { TEXT } from '../strings/common.ts';

export const UnknownPage = () => (
  <main className="page">
    <Empty icon="info" heading="h1" title="Not found">
      <p>The page does not exist, or you are not allowed to see it.</p>
      <Link to="/" className="button">
        {TEXT.nav.projects}
      </Link>
    </Empty>
  </main>
);

export function ProblemPage({ error, reset }: ErrorComponentProps) {
  const router = useRouter();
  if (error instanceof ResponseError && error.status === 404) return <UnknownPage />;
  const again = () => {
    reset();
    router.invalidate();
  };
  return (
    <main className="page">
      <div className="inner narrow">
        <h1>The page could not be loaded</h1>
        <ErrorNote error={error} onRetry={again} />
      </div>
    </main>
  );
}
