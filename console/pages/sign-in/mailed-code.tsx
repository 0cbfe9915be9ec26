import { SIGN_IN_TEXT } from '../../strings/sign-in.ts';
import { CodeField, NewPasswordField } from './first-factor.tsx';
import { BackToSignIn, StepForm } from './form.tsx';
import { nextStep, type Step, signIn } from './steps.ts';

interface Props<Name extends Step['name']> {
  step: Extract<Step, { name: Name }>;
  go: (step: Step) => void;
}

export const CodeForm = ({ step, go }: Props<'code'>) => (
  <StepForm
    go={go}
    action={SIGN_IN_TEXT.continue}
    submit={async (value) => nextStep(await signIn.code(step.email, step.challengeId, value('code')))}
    more={<BackToSignIn go={go} />}
  >
    <p className="quiet">{SIGN_IN_TEXT.codeSent(step.email)}</p>
    <CodeField />
  </StepForm>
);

export const ResetForm = ({ step, go }: Props<'reset'>) => (
  <StepForm
    go={go}
    action={SIGN_IN_TEXT.setPassword}
    submit={async (value) => {
      const { email, challengeId: challenge_id } = step;
      await signIn.reset({ email, challenge_id, code: value('code'), new_password: value('password') });
      return { name: 'password' };
    }}
    more={<BackToSignIn go={go} />}
  >
    <p className="quiet">{SIGN_IN_TEXT.codeSent(step.email)}</p>
    <CodeField />
    <NewPasswordField label={SIGN_IN_TEXT.newPassword} />
  </StepForm>
);
