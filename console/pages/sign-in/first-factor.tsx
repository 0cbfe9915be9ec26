import { useSearch } from '@tanstack/react-router';
import { Field } from '../../components/field.tsx';
import { TEXT } from '../../strings.ts';
import { StepForm, Way } from './form.tsx';
import { nextStep, type Step, signIn } from './steps.ts';

interface FormProps {
  go: (step: Step) => void;
}

const EmailField = () => (
  <Field label={TEXT.signIn.email} name="email" type="email" autoComplete="username" required autoFocus />
);

export const NewPasswordField = ({ label = TEXT.signIn.password }: { label?: string }) => (
  <Field
    label={label}
    hint={TEXT.signIn.passwordHint}
    name="password"
    type="password"
    autoComplete="new-password"
    minLength={8}
    required
  />
);

export const CodeField = ({ label = TEXT.signIn.code }: { label?: string }) => (
  <Field
    label={label}
    className="code"
    name="code"
    inputMode="numeric"
    autoComplete="one-time-code"
    pattern="[0-9]{6}"
    maxLength={6}
    title={TEXT.signIn.codeForm}
    required
    autoFocus
  />
);

export const PasswordForm = ({ go }: FormProps) => (
  <StepForm
    go={go}
    action={TEXT.signIn.signIn}
    submit={async (value) => nextStep(await signIn.password(value('email'), value('password')))}
    more={
      <>
        <Way go={go} to={{ name: 'mail' }}>
          {TEXT.signIn.withCode}
        </Way>
        <Way go={go} to={{ name: 'reset_start' }}>
          {TEXT.signIn.forgotten}
        </Way>
        <Way go={go} to={{ name: 'sign_up' }}>
          {TEXT.signIn.signUp}
        </Way>
      </>
    }
  >
    <EmailField />
    <Field
      label={TEXT.signIn.password}
      name="password"
      type="password"
      autoComplete="current-password"
      required
    />
  </StepForm>
);

const back = (go: FormProps['go']) => (
  <Way go={go} to={{ name: 'password' }}>
    {TEXT.signIn.back}
  </Way>
);

export const MailForm = ({ go }: FormProps) => (
  <StepForm
    go={go}
    action={TEXT.signIn.sendCode}
    more={back(go)}
    submit={async (value) => {
      const email = value('email');
      return { name: 'code', email, challengeId: (await signIn.startMail(email)).challenge_id };
    }}
  >
    <p className="quiet">{TEXT.signIn.mailHint}</p>
    <EmailField />
  </StepForm>
);

export const SignUpForm = ({ go }: FormProps) => (
  <StepForm
    go={go}
    action={TEXT.signIn.signUp}
    more={back(go)}
    submit={async (value) => {
      const email = value('email');
      const { verification } = await signIn.signUp(value('name'), email, value('password'));
      return { name: 'code', email, challengeId: verification.challenge_id };
    }}
  >
    <Field label={TEXT.signIn.name} name="name" autoComplete="name" maxLength={100} required autoFocus />
    <Field label={TEXT.signIn.email} name="email" type="email" autoComplete="username" required />
    <NewPasswordField />
  </StepForm>
);

export const ResetStartForm = ({ go }: FormProps) => (
  <StepForm
    go={go}
    action={TEXT.signIn.sendCode}
    more={back(go)}
    submit={async (value) => {
      const email = value('email');
      return { name: 'reset', email, challengeId: (await signIn.startReset(email)).challenge_id };
    }}
  >
    <p className="quiet">{TEXT.signIn.resetHint}</p>
    <EmailField />
  </StepForm>
);

export function InvitationForm({ go }: FormProps) {
  const { invitation } = useSearch({ from: '/sign-in' });
  return (
    <StepForm
      go={go}
      action={TEXT.signIn.join}
      more={back(go)}
      submit={async (value) => {
        const body = {
          email: value('email'),
          invitation_id: value('invitation_id'),
          code: value('code'),
          name: value('name'),
          password: value('password'),
        };
        return nextStep(await signIn.accept(body));
      }}
    >
      <Field
        label={TEXT.signIn.invitation}
        name="invitation_id"
        defaultValue={invitation}
        className="mono"
        required
      />
      <Field label={TEXT.signIn.email} name="email" type="email" autoComplete="username" required />
      <Field label={TEXT.signIn.name} name="name" autoComplete="name" maxLength={100} required />
      <NewPasswordField />
      <CodeField />
    </StepForm>
  );
}
